package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
)

func (t *tool) newStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what goes express, per container, and why the rest does not",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := t.client().Status()
			if err != nil {
				return err
			}
			if asJSON {
				return t.printJSON(s)
			}
			return t.printStatus(s)
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

func (t *tool) printStatus(s api.Status) error {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t.stdout, "%-8s  "+format+"\n", append([]any{name}, args...)...)
	}
	line("state", "%s", stateText(s))
	line("daemon", "pid %d, scon %s, kernel %s, %s, generation %d", s.PID, s.Version, s.Kernel, s.Mode, s.Generation)
	line("hooks", "%s", hooksText(s.Hooks))
	line("packets", "%s  %d express (%s), %d regular, %d discarded",
		share(s.Totals.ExpressPackets, s.Totals.RegularPackets), s.Totals.ExpressPackets,
		bytesText(s.Totals.ExpressBytes), s.Totals.RegularPackets, s.Totals.DiscardedPackets)
	line("entries", "%d", s.Totals.Entries)
	if why := mostFirst(s.Reasons); why != "" {
		line("uplinks", "regular there: %s", cli.Printable(why))
	}
	fmt.Fprintln(t.stdout)

	if len(s.Containers) == 0 {
		fmt.Fprintln(t.stdout, "No container yet: one is hooked as soon as its port joins a bridge, or a route leads to it.")
	} else if err := containerTable(s.Containers).Print(t.stdout); err != nil {
		return err
	}
	if len(s.Skipped) == 0 {
		return nil
	}
	fmt.Fprintln(t.stdout)
	tab := cli.NewTable("NOT HOOKED", "WHY")
	for _, d := range s.Skipped {
		tab.Add(d.Dev, d.Reason)
	}
	return tab.Print(t.stdout)
}

func containerTable(containers []api.Container) *cli.Table {
	tab := cli.NewTable("CONTAINER", "BRIDGE", "PORT", ">ENTRIES", ">EXPRESS", ">REGULAR", "EXPRESS SHARE", "WHY REGULAR")
	for _, c := range containers {
		name := cmp.Or(c.Name, c.ID, c.Dev)
		if c.Paused {
			name += " (paused)"
		}
		tab.Add(name, cli.OrDash(c.Bridge), c.Dev, c.Entries, c.ExpressPackets, c.RegularPackets,
			share(c.ExpressPackets, c.RegularPackets), cli.OrDash(mostFirst(c.Reasons)))
	}
	return tab
}

func stateText(s api.Status) string {
	switch s.State {
	case api.StatePaused:
		return s.State + " (every packet goes regular; 'scon resume' ends it)"
	case api.StateInert:
		return s.State + " (" + cli.Printable(s.Why) + ")"
	default:
		return s.State
	}
}

// hooksText names the uplinks and counts the containers' ports, which have lines
// of their own.
func hooksText(hooks []api.Hook) string {
	var uplinks []string
	ports := 0
	for _, h := range hooks {
		switch h.Hook {
		case "to_wire":
			uplinks = append(uplinks, cli.Printable(h.Dev))
		case "from_container":
			ports++
		}
	}
	if len(hooks) == 0 {
		return "none: there is no bridge with containers yet"
	}
	word := "ports"
	if ports == 1 {
		word = "port"
	}
	return fmt.Sprintf("uplinks %s; %d container %s", cli.OrDash(few(uplinks)), ports, word)
}
