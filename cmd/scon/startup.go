package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/startup"
)

func (t *tool) newStartupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "startup",
		Short: "Start containers' networks: what is ready, measured and tuned",
	}
	cmd.AddCommand(t.newStartupStatusCommand(), t.newStartupPoolCommand(), t.newStartupBenchCommand(), t.newStartupTuneCommand())
	return cmd
}

func (t *tool) newStartupStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show networks, attachments, stages and how containers got their network",
		Args:  noArgs,
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
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func (t *tool) newStartupPoolCommand() *cobra.Command {
	var asJSON bool
	var fill int
	cmd := &cobra.Command{
		Use:   "pool [NETWORK]",
		Short: "Show the pools of wired namespaces, or fill one",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("fill") {
				if len(args) == 0 || fill < 1 {
					return usagef(cmd, "--fill wants a network, and at least 1 namespace")
				}
				if err := t.client().FillStartupPool(api.StartupFill{Network: args[0], Count: fill}); err != nil {
					return err
				}
			}
			s, err := t.startup()
			if err != nil {
				return err
			}
			pools := []api.StartupNetwork{}
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
	cmd.Flags().IntVar(&fill, "fill", 0, "return when `N` namespaces are ready, or as many as the pool may hold")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// startup asks the daemon about its agent.
func (t *tool) startup() (api.Startup, error) {
	s, err := t.client().Startup()
	if refused := new(api.Error); errors.As(err, &refused) && refused.Status == 404 {
		return s, errors.New("this daemon gives containers no network: set startup.enabled in its configuration")
	}
	return s, err
}

func (t *tool) printStartup(s api.Startup) error {
	fmt.Fprintf(t.stdout, "attached  %d, since the start %d from a pool\n", len(s.Attachments), s.HandedOver)
	for _, why := range slices.Sorted(maps.Keys(s.InPlace)) {
		fmt.Fprintf(t.stdout, "in place  %d: %s\n", s.InPlace[why], printable(why))
	}
	fmt.Fprintln(t.stdout)
	networks := newTable("NETWORK", "KIND", ">ADDRESSES", ">READY", ">TARGET")
	for _, n := range s.Networks {
		ready, target := "-", "-"
		if n.Pool != nil {
			ready, target = fmt.Sprint(n.Pool.Ready), fmt.Sprint(n.Pool.Target)
		}
		networks.add(n.Name, n.Kind, n.Addresses, ready, target)
	}
	if err := networks.print(t.stdout); err != nil {
		return err
	}
	fmt.Fprintln(t.stdout)
	stages := newTable("STAGE", ">LIMIT", ">INSIDE", ">WAITING", ">LATE", ">ENDED")
	for _, name := range startup.Stages {
		g := s.Stages[string(name)]
		limit := "none"
		if g.Limit > 0 {
			limit = fmt.Sprint(g.Limit)
		}
		stages.add(string(name), limit, g.Inside, g.Waiting, int(g.Late), int(g.Ended))
	}
	if err := stages.print(t.stdout); err != nil || len(s.Attachments) == 0 {
		return err
	}
	fmt.Fprintln(t.stdout)
	attachments := newTable("CONTAINER", "NETWORK", "DEVICE", "ADDRESS", "PORT", "FROM")
	for _, a := range s.Attachments {
		from := "in place"
		if a.Pooled {
			from = "pool"
		}
		attachments.add(orDash(a.Container), a.Network, a.IfName, orDash(strings.Join(a.Addresses, " ")), orDash(a.Host), from)
	}
	return attachments.print(t.stdout)
}

func (t *tool) printPools(pools []api.StartupNetwork) error {
	if len(pools) == 0 {
		_, err := fmt.Fprintln(t.stdout, "No pool: a network has one from startup.networks, or its first ADD, on.")
		return err
	}
	tab := newTable("NETWORK", ">READY", ">TARGET", ">EMPTY", ">TAKEN", ">MISSED", ">MADE", ">RECYCLED", ">MEMORY", "LAST FAILURE")
	for _, n := range pools {
		p := n.Pool
		tab.add(n.Name, p.Ready, p.Target, p.Displaced, int(p.Taken), int(p.Missed), int(p.Made), int(p.Recycled),
			bytesText(uint64(p.Bytes)), orDash(p.Failure))
	}
	return tab.print(t.stdout)
}
