package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
)

func (t *tool) newFlowsCommand() *cobra.Command {
	var (
		asJSON    bool
		container string
	)
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List the connections that SCON knows",
		RunE: func(*cobra.Command, []string) error {
			flows, err := t.client().Flows(container)
			if err != nil {
				return err
			}
			if asJSON {
				return t.printJSON(flows)
			}
			s, err := t.client().Status()
			if err != nil {
				return err
			}
			if s.State != api.StateActive {
				fmt.Fprintf(t.stdout, "SCON is %s.\n", stateText(s))
			}
			if len(flows) > 0 {
				return flowTable(flows).Print(t.stdout)
			}
			_, err = fmt.Fprintln(t.stdout, noFlows(s, container))
			return err
		},
	}
	addContainer(cmd, &container)
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

// noFlows says why no connections are listed.
func noFlows(s api.Status, container string) string {
	switch {
	case container != "":
		return fmt.Sprintf("No connections of %[1]s: 'scon explain %[1]s' says why.", cli.Printable(container))
	case len(s.Containers) == 0:
		return "No connections: " + noContainers
	default:
		return "No connections: one becomes a candidate after its first packets; 'scon explain CONTAINER' says why it is not one."
	}
}

func addContainer(cmd *cobra.Command, container *string) {
	cmd.Use += " [CONTAINER]"
	cmd.Flags().Var((*cli.NonEmpty)(container), "container", "the same as CONTAINER, a `container`'s name or ID (default: all)")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return nil
		case len(args) > 1:
			return cli.Usagef(cmd, "takes one container, got %d arguments", len(args))
		case *container != "":
			return cli.Usagef(cmd, "takes %q or --container %s, not both", args[0], *container)
		}
		if err := (*cli.NonEmpty)(container).Set(args[0]); err != nil {
			return cli.Usagef(cmd, "the container's name: %v", err)
		}
		return nil
	}
}

// flowTable has one line per Conentry with both directions. Where conntrack counts
// packets, it also has the sums of conntrack's and SCON's counters.
func flowTable(flows []api.Flow) *cli.Table {
	header := []string{"CONTAINER", "PROTO", "ORIGINAL", "REPLY", "STATE", "PATH",
		">PACKETS OUT", ">BACK", ">BYTES OUT", ">BACK", ">AGE", ">IDLE", ">LEASE", "LEAVES BY"}
	counted := slices.ContainsFunc(flows, func(f api.Flow) bool { return f.RegularPackets != nil })
	if counted {
		header = append(header, ">WITH REGULAR OUT", ">BACK")
	}
	tab := cli.NewTable(header...)
	for _, f := range flows {
		cells := []any{f.Container, f.Proto, f.Orig, cli.OrDash(f.Reply.String()), f.State, cli.OrDash(pathOf(f)),
			f.ExpressPackets[0], f.ExpressPackets[1], bytesText(f.ExpressBytes[0]), bytesText(f.ExpressBytes[1]),
			millis(f.AgeMS), millis(f.IdleMS), millis(f.LeaseMS), leaving(f)}
		if counted {
			cells = append(cells, withRegular(f, 0), withRegular(f, 1))
		}
		tab.Add(cells...)
	}
	return tab
}

// withRegular returns the sum of SCON's and conntrack's counters of a direction.
func withRegular(f api.Flow, dir int) string {
	if f.RegularPackets == nil || f.RegularBytes == nil {
		return "-"
	}
	return fmt.Sprintf("%d, %s", f.ExpressPackets[dir]+f.RegularPackets[dir], bytesText(f.ExpressBytes[dir]+f.RegularBytes[dir]))
}

// pathOf returns the regular path of a Conentry, with the container at its other end.
func pathOf(f api.Flow) string {
	if f.Peer == "" {
		return f.Path
	}
	return f.Path + ", " + f.Peer
}

// leaving returns the device and next hop of a Conentry's packets, as recorded so far.
func leaving(f api.Flow) string {
	if f.Oif == "" {
		return "not seen yet"
	}
	text := f.Oif
	if f.NextHop != "" {
		text += " to " + f.NextHop
	}
	if f.Overlay != "" {
		text += " over " + f.Overlay
	}
	if f.MTU != 0 {
		text += fmt.Sprintf(", MTU %d", f.MTU)
	}
	return text
}
