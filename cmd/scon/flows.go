package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/numbers"
	"github.com/scon-project/scon/internal/plain"
)

func (t *tool) newFlowsCommand() *cobra.Command {
	var (
		asJSON, wide bool
		container    string
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
				return t.printFlows(flows, s.Containers, wide)
			}
			_, err = fmt.Fprintln(t.stdout, noFlows(s, container))
			return err
		},
	}
	addContainer(cmd, &container)
	cli.AddJSONFlag(cmd, &asJSON)
	addWideFlag(cmd, &wide)
	return cmd
}

func addWideFlag(cmd *cobra.Command, wide *bool) {
	cmd.Flags().BoolVar(wide, "wide", false, "print all columns and whole lines, however wide the terminal is")
}

// noFlows says why no connections are listed.
func noFlows(s api.Status, container string) string {
	switch {
	case container != "":
		return fmt.Sprintf("No connections of %[1]s: 'scon explain %[1]s' says why.", plain.Text(container))
	case len(s.Containers) == 0:
		return "No connections: " + noContainers
	default:
		return "No connections: one becomes a candidate after its first packets; 'scon explain CONTAINER' says why it is not one."
	}
}

func addContainer(cmd *cobra.Command, container *string) {
	cmd.Use += " [CONTAINER]"
	cmd.Flags().Var((*cli.NonEmpty)(container), "container", "the same as CONTAINER, a `container`'s name or ID (default: all)")
	cli.CompleteFlag(cmd, "container", cli.Containers)
	cmd.ValidArgsFunction = cli.OneContainer
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

// printFlows prints a line for each Conentry, with both directions: what fits into the
// terminal, or everything.
func (t *tool) printFlows(flows []api.Flow, containers []api.Container, wide bool) error {
	if !wide {
		return cli.PrintGrid(t.stdout, flowColumns, flows, cli.Width(t.stdout))
	}
	columns := slices.Concat(wideColumns, originColumns(containers))
	if slices.ContainsFunc(flows, func(f api.Flow) bool { return f.RegularPackets != nil }) {
		columns = slices.Concat(columns, countedColumns)
	}
	return cli.PrintGrid(t.stdout, columns, flows, cli.NoWidth)
}

type flowColumn = cli.Column[api.Flow]

// flowColumns fit into 80 columns: the longest connections of IPv6 take two lines. Scon
// explain takes a connection in the form that it has here.
var flowColumns = []flowColumn{
	{Title: "CONTAINER", Least: 9, Text: func(f *api.Flow) string { return f.Container }},
	{Title: "CONNECTION", Wrap: true, Least: len("tcp:255.255.255.255:65535->255.255.255.255:65535"),
		Text: func(f *api.Flow) string { return f.Proto + ":" + f.Orig.String() }},
	{Title: "STATE", Drop: 1, Text: func(f *api.Flow) string { return f.State }, Tone: flowTone},
	{Title: "OUT", Right: true, Text: func(f *api.Flow) string { return numbers.Count(f.ExpressPackets[0]) }},
	{Title: "BACK", Right: true, Text: func(f *api.Flow) string { return numbers.Count(f.ExpressPackets[1]) }},
	{Title: "BYTES", Right: true, Drop: 2, Text: func(f *api.Flow) string { return numbers.Bytes(f.ExpressBytes[0] + f.ExpressBytes[1]) }},
	{Title: "IDLE", Right: true, Drop: 3, Text: func(f *api.Flow) string { return numbers.Millis(f.IdleMS) }},
}

var wideColumns = []flowColumn{
	{Title: "CONTAINER", Text: func(f *api.Flow) string { return f.Container }},
	{Title: "PROTO", Text: func(f *api.Flow) string { return f.Proto }},
	{Title: "ORIGINAL", Text: func(f *api.Flow) string { return f.Orig.String() }},
	{Title: "REPLY", Text: func(f *api.Flow) string { return cli.OrDash(f.Reply.String()) }},
	{Title: "STATE", Text: func(f *api.Flow) string { return f.State }, Tone: flowTone},
	{Title: "PATH", Text: func(f *api.Flow) string { return cli.OrDash(pathOf(*f)) }},
	{Title: "PACKETS OUT", Right: true, Text: func(f *api.Flow) string { return fmt.Sprint(f.ExpressPackets[0]) }},
	{Title: "BACK", Right: true, Text: func(f *api.Flow) string { return fmt.Sprint(f.ExpressPackets[1]) }},
	{Title: "BYTES OUT", Right: true, Text: func(f *api.Flow) string { return numbers.Bytes(f.ExpressBytes[0]) }},
	{Title: "BACK", Right: true, Text: func(f *api.Flow) string { return numbers.Bytes(f.ExpressBytes[1]) }},
	{Title: "AGE", Right: true, Text: func(f *api.Flow) string { return numbers.Millis(f.AgeMS) }},
	{Title: "IDLE", Right: true, Text: func(f *api.Flow) string { return numbers.Millis(f.IdleMS) }},
	{Title: "LEASE", Right: true, Text: func(f *api.Flow) string { return numbers.Millis(f.LeaseMS) }},
	{Title: "LEAVES BY", Text: func(f *api.Flow) string { return leaving(*f) }},
}

// originColumns are the image and the Compose service of each connection's container.
func originColumns(containers []api.Container) []flowColumn {
	column := func(title string, text func(*api.Container) string) flowColumn {
		return flowColumn{Title: title, Text: func(f *api.Flow) string {
			for i := range containers {
				if live.NameOf(&containers[i]) == f.Container {
					return cli.OrDash(text(&containers[i]))
				}
			}
			return "-"
		}}
	}
	return []flowColumn{
		column("IMAGE", func(c *api.Container) string { return c.Image }),
		column("SERVICE", func(c *api.Container) string { return c.Service }),
	}
}

// countedColumns are there where conntrack counts packets: the sums of its counters and
// SCON's.
var countedColumns = []flowColumn{
	{Title: "WITH REGULAR OUT", Right: true, Text: func(f *api.Flow) string { return withRegular(*f, 0) }},
	{Title: "BACK", Right: true, Text: func(f *api.Flow) string { return withRegular(*f, 1) }},
}

func flowTone(f *api.Flow) cli.Tone { return cli.FlowTone(f.State) }

// withRegular returns the sum of SCON's and conntrack's counters of a direction.
func withRegular(f api.Flow, dir int) string {
	if f.RegularPackets == nil || f.RegularBytes == nil {
		return "-"
	}
	return fmt.Sprintf("%d, %s", f.ExpressPackets[dir]+f.RegularPackets[dir], numbers.Bytes(f.ExpressBytes[dir]+f.RegularBytes[dir]))
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
