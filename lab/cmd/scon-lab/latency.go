package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/latency"
	"github.com/scon-project/scon/lab/page"
	"github.com/scon-project/scon/lab/topology"
)

// newLatencyCommand returns "scon latency", which measures the latency of packets
// through lines of containers.
func newLatencyCommand() *cobra.Command {
	var o latencyOptions
	cmd := &cobra.Command{
		Use:   "latency",
		Short: cli.LabCommands["latency"],
		Long: `Measure the latency of every packet through lines of containers.

Each mode "nN" is a line of N network namespaces that forward datagrams of 64
bytes; with --topology, each flow of the file is a mode. Taps at both ends record
when a packet passes and what interrupted its CPU in between. Packets are sent at a
constant rate, independent of earlier ones.

--ramp first finds the highest rate without loss, and measures at that rate.
--express measures lines of gateways with bridge and NAT, with and without SCON.

With --dir, the packets of all rounds are written to DIR/raw, those of the worst
round to MODE.hgrm, MODE.hlog and MODE-worst.csv. Ctrl-C ends a run and keeps the
rounds measured so far.`,
		Example: `  scon latency --nodes 1,64 --rate 17300 --duration 3s --json result.json
  scon latency --nodes 8 --ramp
  scon latency --topology diamond.yaml`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&o.Nodes, "nodes", []int{1, 2, 4, 8, 16, 32, 64}, fmt.Sprintf("lengths of the lines, 1 to %d", topology.MaxLine))
	f.Var((*cli.NonEmpty)(&o.file), "topology", "measure the flows of this `file` instead")
	f.BoolVar(&o.Express, "express", false, "measure lines of gateways, with and without SCON")
	f.Float64Var(&o.Rate, "rate", latency.Rate, "packets per second")
	f.BoolVar(&o.ramp, "ramp", false, "measure at the highest rate without loss")
	f.DurationVar(&o.Duration, "duration", 3*time.Second, "how `long` each round sends")
	f.IntVar(&o.Repeats, "repeats", 3, "`number` of rounds; every round measures each mode once")
	f.StringVar(&o.pin, "pin", string(latency.PinCore), "CPU that sends and forwards: core (one CPU) or none (any)")
	f.Var((*cli.NonEmpty)(&o.json), "json", "write the result to this `file`")
	f.Var((*cli.NonEmpty)(&o.Dir), "dir", "write packets and histograms to this `folder`")
	f.BoolVar(&o.open, "open", false, openHelp)
	cmd.AddCommand(newLatencyShowCommand(), newLatencyFiguresCommand(), newLatencyGenerateCommand())
	return cmd
}

// newLatencyShowCommand draws the tables of a document from a file.
func newLatencyShowCommand() *cobra.Command {
	var open bool
	cmd := &cobra.Command{
		Use:   "show FILE",
		Short: "Print the tables of a result that --json wrote",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := latency.ReadFile(args[0])
			if err != nil {
				return err
			}
			return showLatency(r, open, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&open, "open", false, openHelp)
	return cmd
}

// openHelp is the help of flags --open.
const openHelp = "show the result as a page in the browser, or print the page's path where there is no desktop"

// showLatency prints a result, and opens its page.
func showLatency(r *latency.Result, open bool, out io.Writer) error {
	var err error
	if open {
		var p page.Page
		if p, err = r.Page(); err == nil {
			err = p.Open("latency", out)
		}
	}
	return errors.Join(err, r.WriteTable(out))
}

// newLatencyFiguresCommand measures and draws what the paper's figures show.
func newLatencyFiguresCommand() *cobra.Command {
	var quick, draw bool
	dir := "results"
	cmd := &cobra.Command{
		Use:   "figures",
		Short: "Measure and draw the paper's figures for this machine",
		Long: `Measure and draw the paper's figures for this machine.

This writes latency.json, latency-max.json, latency-max-any.json,
latency-express.json and the report latency.md to DIR, and plots and histograms to
DIR/latency. It takes about ten minutes, or one with --quick.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if draw {
				return latency.DrawFigures(dir)
			}
			effort := latency.Full
			if quick {
				effort = latency.Quick
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err := latency.MeasureFigures(ctx, dir, effort, func(experiment string) bench.Progress {
				fmt.Fprintln(cmd.ErrOrStderr(), experiment)
				return cli.NewProgress(os.Stderr)
			})
			if errors.Is(err, context.Canceled) {
				return errors.New("interrupted; complete experiments are kept, and --draw draws them")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&quick, "quick", false, "take fewer and shorter samples")
	cmd.Flags().BoolVar(&draw, "draw", false, "draw the results in DIR without measuring")
	cmd.Flags().StringVar(&dir, "dir", dir, "`folder` of results, report and plots")
	return cmd
}

// newLatencyGenerateCommand is the generator that latency starts in the first
// nodes of the lines.
func newLatencyGenerateCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "generate",
		Hidden: true,
		Args:   cli.NoArgs,
		Run:    func(*cobra.Command, []string) { latency.Generate(os.Stdin, os.Stdout) },
	}
}

// latencyOptions are the flags of "scon latency".
type latencyOptions struct {
	latency.Options
	file, pin, json string
	ramp, open      bool
}

// The most packets per second that a rate may be, and that a round may have.
const (
	maxRate    = 1e6
	maxPackets = 5e6
)

func (o *latencyOptions) check(cmd *cobra.Command) (err error) {
	given := cmd.Flags().Changed
	switch {
	case o.file != "" && (given("nodes") || o.Express):
		return cli.Usagef(cmd, "--nodes and --express are for lines, not for --topology")
	case o.ramp && given("rate"):
		return cli.Usagef(cmd, "--ramp finds the rate: omit --rate")
	case o.Rate < 1 || o.Rate > maxRate:
		return cli.Usagef(cmd, "--rate %v: want 1 to %.0f packets per second", o.Rate, maxRate)
	case o.Duration <= 0:
		return cli.Usagef(cmd, "--duration %v: want more than 0", o.Duration)
	case !o.ramp && o.Rate*o.Duration.Seconds() < 1:
		return cli.Usagef(cmd, "--rate %v for %v is less than one packet", o.Rate, o.Duration)
	case !o.ramp && o.Rate*o.Duration.Seconds() > maxPackets:
		return cli.Usagef(cmd, "--rate %v for %v are too many packets: want %.0f at most", o.Rate, o.Duration, maxPackets)
	case o.Repeats < 1:
		return cli.Usagef(cmd, "--repeats %d: want at least 1", o.Repeats)
	case o.pin != string(latency.PinCore) && o.pin != string(latency.PinNone):
		return cli.Usagef(cmd, "--pin %q: want core or none", o.pin)
	case len(o.Nodes) == 0:
		return cli.Usagef(cmd, "--nodes is empty")
	}
	for i, n := range o.Nodes {
		if n < 1 || n > topology.MaxLine {
			return cli.Usagef(cmd, "--nodes %d: want 1 to %d", n, topology.MaxLine)
		}
		if slices.Contains(o.Nodes[:i], n) {
			return cli.Usagef(cmd, "--nodes has %d twice", n)
		}
	}
	o.Pin = latency.Pin(o.pin)
	if o.ramp {
		o.Rate = 0
	}
	if o.file != "" {
		o.Topology, err = topology.Load(o.file)
	}
	return err
}

// run measures and prints the result, also that of an interrupted run.
func (o *latencyOptions) run(cmd *cobra.Command) error {
	if err := checkOutput(o.json); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o.Progress = cli.NewProgress(os.Stderr)
	r, err := latency.Run(ctx, o.Options)
	if err != nil && ctx.Err() != nil {
		err = interrupted(r != nil)
	}
	if r == nil {
		return err
	}
	if o.json != "" {
		err = errors.Join(err, r.WriteFile(o.json))
	}
	return errors.Join(err, showLatency(r, o.open, cmd.OutOrStdout()))
}
