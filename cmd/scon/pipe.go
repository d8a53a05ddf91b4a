package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/numbers"
	"github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newPipeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pipe",
		Short: "Show the pipe: names, connections and supported engines",
	}
	cmd.AddCommand(t.newPipeServeCommand(), t.newPipeListCommand(), t.newPipeStatCommand(), t.newPipeDoctorCommand())
	return cmd
}

func (t *tool) newPipeListCommand() *cobra.Command {
	return t.newPipeReadCommand("ls", "List names and connections", t.printPipeList)
}

func (t *tool) newPipeStatCommand() *cobra.Command {
	return t.newPipeReadCommand("stat", "Show totals: processes, memory, bytes, refusals", t.printPipeStat)
}

// newPipeReadCommand returns a command that prints the broker's state with show.
func (t *tool) newPipeReadCommand(use, short string, show func(control.Pipe) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := control.Dial(t.socketOf(state.Pipe)).Pipe()
			if err != nil {
				return err
			}
			if asJSON {
				return t.printJSON(p)
			}
			return show(p)
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

func (t *tool) printPipeList(p control.Pipe) error {
	if len(p.Names) == 0 && len(p.Connections) == 0 {
		_, err := fmt.Fprintf(t.stdout, "No names and no connections at %s.\n", plain.Text(p.Socket))
		return err
	}
	names := cli.NewTable("NAME", "PROCESS", "NETNS", "ENGINES", ">WAITING", ">BACKLOG")
	for _, n := range p.Names {
		backlog := "bound"
		if n.Listening {
			backlog = fmt.Sprint(n.Backlog)
		}
		names.Add(n.Name, process(n.PipeParty), n.Netns, strings.Join(n.Engines, " "), n.Waiting, backlog)
	}
	if err := names.Print(t.stdout); err != nil || len(p.Connections) == 0 {
		return err
	}
	fmt.Fprintln(t.stdout)
	connections := cli.NewTable(">ID", "CLIENT", "SERVER", "NAME", "ENGINE", ">SENT", ">BACK", ">RING", ">BACK", ">AGE", "STATE")
	for _, c := range p.Connections {
		condition := "open"
		if c.Over {
			condition = "over"
		}
		connections.Add(c.ID, process(c.Client.PipeParty), process(c.Server.PipeParty), c.Name, c.Engine,
			numbers.Bytes(c.Client.SentBytes), numbers.Bytes(c.Server.SentBytes),
			numbers.Bytes(c.Client.RingBytes), numbers.Bytes(c.Server.RingBytes), numbers.Millis(c.AgeMS), condition)
	}
	return connections.Print(t.stdout)
}

func process(p control.PipeParty) string { return fmt.Sprintf("%s/%d", p.Command, p.PID) }

func (t *tool) printPipeStat(p control.Pipe) error {
	fmt.Fprintf(t.stdout, "socket       %s\n", plain.Text(p.Socket))
	fmt.Fprintf(t.stdout, "engines      %s\n", cli.OrDash(strings.Join(p.Engines, " ")))
	if p.CopyDevice != "" {
		fmt.Fprintf(t.stdout, "copy device  %s\n", plain.Text(p.CopyDevice))
	}
	fmt.Fprintf(t.stdout, "processes    %d\n", p.Processes)
	fmt.Fprintf(t.stdout, "connections  %d, since the start %d\n", len(p.Connections), p.Made)
	fmt.Fprintf(t.stdout, "memory       %s of %s\n", numbers.Bytes(p.MemoryBytes), numbers.Bytes(p.MemoryLimit))
	fmt.Fprintf(t.stdout, "sent         %s; %d rings grew\n", numbers.Bytes(p.SentBytes), p.Grown)
	for _, why := range slices.Sorted(maps.Keys(p.Refused)) {
		fmt.Fprintf(t.stdout, "refused      %d: %s\n", p.Refused[why], plain.Text(why))
	}
	return nil
}

func (t *tool) newPipeDoctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show which features of the pipe work on this machine, and how to fix the others",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			d := doctor.Pipe(copier.FindDevice)
			if asJSON {
				return t.printJSON(d)
			}
			return t.printDoctor(d, "The pipe can run on this machine: pipe.enabled in the settings starts it with 'scon up'.")
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}
