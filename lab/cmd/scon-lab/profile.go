package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/profile"
)

// newProfileCommand returns "scon profile", which shows where a packet's time goes.
func newProfileCommand() *cobra.Command {
	var o profileOptions
	cmd := &cobra.Command{
		Use:   "profile",
		Short: cli.LabCommands["profile"],
		Long: `Show where a packet's time goes, layer by layer, and the cost of this machine's
packet filter.

Without --container, a native process and a container send datagrams of 64 bytes,
with and without SCON, in a private lab. With --container, the traffic of a container
of this machine is traced.

No packet is changed or dropped. Few packets are traced, one at a time on each CPU;
the cost of tracing is measured and shown. The kernel removes the tracing programs
when the command ends, however it ends.`,
		Example: `  scon profile --svg profile.svg
  scon profile --container web --open`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.mode, "mode", "all", "in the lab: native, container, express or all")
	cli.CompleteWords(cmd, "mode", "all", "native", "container", "express")
	f.IntVar(&o.rounds, "rounds", 6, "in the lab: `number` of rounds; every round measures each mode once")
	f.Var((*cli.NonEmpty)(&o.container), "container", "trace this container of this machine, by `name` or ID")
	cli.CompleteFlag(cmd, "container", cli.Containers)
	f.DurationVar(&o.duration, "for", 5*time.Second, "how `long` to trace the container")
	cli.AddNetnsFlag(cmd, &o.netns, "where the container's bridge is, a `name` of ip-netns or a path (default: this namespace)")
	f.Var((*cli.NonEmpty)(&o.json), "json", "write the profile to this `file`")
	o.addTo(cmd)
	cmd.AddCommand(newProfileShowCommand())
	return cmd
}

// newProfileShowCommand draws the table of a document from a file.
func newProfileShowCommand() *cobra.Command {
	var pictures profilePictures
	cmd := &cobra.Command{
		Use:   "show FILE",
		Short: "Print the tables of a profile that --json wrote",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := profile.ReadFile(args[0])
			if err != nil {
				return err
			}
			return errors.Join(pictures.draw(p, cmd.OutOrStdout()), p.WriteTable(cmd.OutOrStdout()))
		},
	}
	pictures.addTo(cmd)
	return cmd
}

// profilePictures are the flags for pictures of a profile.
type profilePictures struct {
	png, svg string
	open     bool
}

func (o *profilePictures) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var((*cli.NonEmpty)(&o.png), "png", "draw the layers as stacked bars in this `file`")
	f.Var((*cli.NonEmpty)(&o.svg), "svg", "draw the paths below each other, like a flame graph, in this `file`")
	f.BoolVar(&o.open, "open", false, openHelp)
}

// draw draws what the flags ask for.
func (o *profilePictures) draw(p *profile.Profile, out io.Writer) (err error) {
	if o.png != "" {
		err = p.WritePNG(o.png)
	}
	if o.svg != "" {
		err = errors.Join(err, p.WriteSVG(o.svg))
	}
	if o.open {
		err = errors.Join(err, p.Page().Open("profile", out))
	}
	return err
}

// profileOptions are the flags of "scon profile".
type profileOptions struct {
	mode      string
	rounds    int
	container string
	duration  time.Duration
	netns     string
	json      string
	profilePictures

	modes []bench.Mode
}

// labTime is how long traffic flows in each measurement in the lab.
const labTime = 300 * time.Millisecond

func (o *profileOptions) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	switch {
	case o.container == "" && (given("for") || given("netns")):
		return cli.Usagef(cmd, "--for and --netns go with --container")
	case o.container != "" && (given("mode") || given("rounds")):
		return cli.Usagef(cmd, "--mode and --rounds are for the lab, not for --container")
	case o.duration <= 0:
		return cli.Usagef(cmd, "--for %v: want more than 0", o.duration)
	case o.rounds < 1:
		return cli.Usagef(cmd, "--rounds %d: want at least 1", o.rounds)
	}
	var names []string
	for _, m := range profile.Modes {
		names = append(names, m.Name)
		if o.mode == m.Name || o.mode == "all" {
			o.modes = append(o.modes, m)
		}
	}
	if len(o.modes) == 0 {
		return cli.Usagef(cmd, "--mode %q: want all, %s", o.mode, strings.Join(names, ", "))
	}
	return nil
}

// run measures and prints the result, also that of an interrupted run.
func (o *profileOptions) run(cmd *cobra.Command) error {
	if err := checkOutput(o.json, o.png, o.svg); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p, err := o.measure(ctx)
	if err != nil && ctx.Err() != nil {
		measured := p != nil && len(p.Paths) > 0
		if err = interrupted(measured); !measured {
			return err
		}
	}
	if p == nil {
		return err
	}
	if o.json != "" {
		err = errors.Join(err, p.WriteFile(o.json))
	}
	return errors.Join(err, o.draw(p, cmd.OutOrStdout()), p.WriteTable(cmd.OutOrStdout()))
}

func (o *profileOptions) measure(ctx context.Context) (p *profile.Profile, err error) {
	if err := doctor.Require(); err != nil {
		return nil, err
	}
	progress := cli.NewProgress(os.Stderr)
	if o.container == "" {
		return profile.Lab(ctx, profile.LabOptions{
			Modes: slices.Clone(o.modes), Rounds: o.rounds, Duration: labTime, Progress: progress,
		})
	}
	err = netns.Do(o.netns, func() error {
		p, err = profile.Live(ctx, profile.LiveOptions{
			Container: o.container, Duration: o.duration, Progress: progress,
		})
		return err
	})
	return p, err
}
