package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/numbers"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/startup"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newStartupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "startup",
		Short: "Show, measure and tune the start of containers' networks",
	}
	cmd.AddCommand(t.newStartupServeCommand(), t.newStartupStatusCommand(), t.newStartupPoolCommand(), t.newStartupPluginCommand())
	return cmd
}

func (t *tool) newStartupStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show networks, attachments, stages and the use of the pools",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := t.startup()
			if err != nil {
				return err
			}
			if asJSON {
				return t.printJSON(s)
			}
			return t.printStartup(s)
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

func (t *tool) newStartupPoolCommand() *cobra.Command {
	var asJSON bool
	var fill int
	cmd := &cobra.Command{
		Use:   "pool [NETWORK]",
		Short: "Show the pools of prepared namespaces, or fill one",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("fill") {
				if len(args) == 0 || fill < 1 {
					return cli.Usagef(cmd, "--fill needs a network and at least 1 namespace")
				}
				if err := control.Dial(t.socketOf(state.Startup)).FillStartupPool(control.StartupFill{Network: args[0], Count: fill}); err != nil {
					return err
				}
			}
			s, err := t.startup()
			if err != nil {
				return err
			}
			pools := []control.StartupNetwork{}
			for _, n := range s.Networks {
				if n.Pool != nil && (len(args) == 0 || n.Name == args[0]) {
					pools = append(pools, n)
				}
			}
			if len(args) > 0 && len(pools) == 0 {
				return fmt.Errorf("network %q has no pool: 'scon startup status' lists networks", args[0])
			}
			if asJSON {
				return t.printJSON(pools)
			}
			return t.printPools(pools)
		},
	}
	cmd.Flags().IntVar(&fill, "fill", 0, "wait until `N` namespaces are ready, or the pool is full")
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

// startup returns the state of the startup service's agent.
func (t *tool) startup() (control.Startup, error) {
	return control.Dial(t.socketOf(state.Startup)).Startup()
}

func (t *tool) printStartup(s control.Startup) error {
	fmt.Fprintf(t.stdout, "attached  %d, since the start %d from a pool\n", len(s.Attachments), s.HandedOver)
	for _, why := range slices.Sorted(maps.Keys(s.InPlace)) {
		fmt.Fprintf(t.stdout, "in place  %d: %s\n", s.InPlace[why], plain.Text(why))
	}
	fmt.Fprintln(t.stdout)
	networks := cli.NewTable("NETWORK", "KIND", ">ADDRESSES", ">READY", ">TARGET")
	for _, n := range s.Networks {
		ready, target := "-", "-"
		if n.Pool != nil {
			ready, target = fmt.Sprint(n.Pool.Ready), fmt.Sprint(n.Pool.Target)
		}
		networks.Add(n.Name, n.Kind, n.Addresses, ready, target)
	}
	if err := networks.Print(t.stdout); err != nil {
		return err
	}
	fmt.Fprintln(t.stdout)
	stages := cli.NewTable("STAGE", ">LIMIT", ">INSIDE", ">WAITING", ">LATE", ">ENDED")
	for _, name := range startup.Stages {
		g := s.Stages[string(name)]
		limit := "none"
		if g.Limit > 0 {
			limit = fmt.Sprint(g.Limit)
		}
		stages.Add(string(name), limit, g.Inside, g.Waiting, int(g.Late), int(g.Ended))
	}
	if err := stages.Print(t.stdout); err != nil || len(s.Attachments) == 0 {
		return err
	}
	fmt.Fprintln(t.stdout)
	attachments := cli.NewTable("CONTAINER", "NETWORK", "DEVICE", "ADDRESS", "PORT", "FROM")
	for _, a := range s.Attachments {
		from := "in place"
		if a.Pooled {
			from = "pool"
		}
		attachments.Add(cli.OrDash(a.Container), a.Network, a.IfName, cli.OrDash(strings.Join(a.Addresses, " ")), cli.OrDash(a.Host), from)
	}
	return attachments.Print(t.stdout)
}

func (t *tool) printPools(pools []control.StartupNetwork) error {
	if len(pools) == 0 {
		_, err := fmt.Fprintln(t.stdout, "No pools: a network of startup.networks has one, any other network from its first ADD.")
		return err
	}
	tab := cli.NewTable("NETWORK", ">READY", ">TARGET", ">TAKEN", ">MISSED", ">MADE", ">MEMORY", "LAST FAILURE")
	for _, n := range pools {
		p := n.Pool
		tab.Add(n.Name, p.Ready, p.Target, int(p.Taken), int(p.Missed), int(p.Made),
			numbers.Bytes(p.Bytes), cli.OrDash(p.Failure))
	}
	return tab.Print(t.stdout)
}
