package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/lab/advise"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/latency"
	"github.com/scon-project/scon/lab/topology"
)

// adviseFlags say what is measured.
type adviseFlags struct {
	nodes    int
	rate     float64
	duration time.Duration
	rounds   int
	json     bool
}

// advice is what `scon pin advise --json` prints.
type advice struct {
	Machine   string  `json:"machine"`
	Kernel    string  `json:"kernel"`
	Nodes     int     `json:"nodes"`
	Rate      float64 `json:"rate_pps"`
	DurationS float64 `json:"duration_s"`
	// The machine's load averages, of the last minute.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
	advise.Advice
}

func (t *tool) newPinAdviseCommand() *cobra.Command {
	var f adviseFlags
	cmd := &cobra.Command{
		Use:   "advise",
		Short: cli.LabCommands["pin advise"],
		Long: `Measure placements and recommend one that is better beyond noise, if any.

This builds a line of network namespaces and measures it as 'scon latency' does: in
each round unchanged, with each candidate, and unchanged again. Candidates are the
policies and steering methods that affect the line's veth devices or the CPUs, and
merging datagrams. The line has no hardware interrupts, so their placement is not
compared, and its datagrams come one by one, so merging shows only its cost. A candidate is
recommended if p50, p99 or p99.9 improves beyond noise, none of them gets worse, and
no more packets are lost. All settings are restored after each measurement.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			a, err := f.run(cmd.Context(), t.pinHost())
			if err != nil {
				return err
			}
			if f.json {
				return cli.PrintJSON(t.stdout, a)
			}
			return t.printAdvice(a)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.nodes, "nodes", 4, fmt.Sprintf("length of the line, 1 to %d", topology.MaxLine))
	flags.Float64Var(&f.rate, "rate", latency.Rate, "packets per second")
	flags.DurationVar(&f.duration, "duration", time.Second, "how `long` each measurement sends")
	flags.IntVar(&f.rounds, "rounds", 0, "`number` of rounds (default: two more than the minimum)")
	cli.AddJSONFlag(cmd, &f.json)
	return cmd
}

func (f *adviseFlags) check(cmd *cobra.Command) error {
	switch {
	case f.nodes < 1 || f.nodes > topology.MaxLine:
		return cli.Usagef(cmd, "--nodes %d: want 1 to %d", f.nodes, topology.MaxLine)
	case f.rate < 1 || f.rate > maxRate:
		return cli.Usagef(cmd, "--rate %v: want 1 to %.0f packets per second", f.rate, maxRate)
	case f.duration <= 0:
		return cli.Usagef(cmd, "--duration %v: want more than 0", f.duration)
	case f.rate*f.duration.Seconds() < 1000:
		return cli.Usagef(cmd, "--rate %v for %v are too few packets for a p99.9: want 1000", f.rate, f.duration)
	case f.rate*f.duration.Seconds() > maxPackets:
		return cli.Usagef(cmd, "--rate %v for %v are too many packets: want %.0f at most", f.rate, f.duration, maxPackets)
	case f.rounds < 0 || cmd.Flags().Changed("rounds") && f.rounds < 1:
		return cli.Usagef(cmd, "--rounds %d: want at least 1", f.rounds)
	}
	return nil
}

// run measures on a line of its own. Of the machine only the CPUs are changed,
// and those of the line's devices.
func (f *adviseFlags) run(ctx context.Context, machine *pin.Host) (_ advice, err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	probe, err := latency.OpenProbe(ctx, "pin", f.nodes, f.rate, f.duration)
	if err != nil {
		return advice{}, err
	}
	defer func() { err = errors.Join(err, probe.Close()) }()
	h := *machine
	h.OnlyNetns, h.Namespaces = true, nil
	for _, path := range probe.Namespaces() {
		h.Namespaces = append(h.Namespaces, pin.Namespace{Path: path})
	}
	a := advice{Nodes: f.nodes, Rate: f.rate, DurationS: f.duration.Seconds()}
	a.Machine, a.Kernel = bench.Machine()
	a.LoadBefore = loadAverage()
	progress := cli.NewProgress(os.Stderr)
	defer progress.Done()
	// In a namespace without devices, so that this machine's are not touched.
	err = netns.Scratch(func() error {
		s, err := h.Capture()
		if err != nil {
			return err
		}
		candidates, err := advise.Candidates(s, nil)
		if err != nil {
			return err
		}
		rounds := f.rounds
		if rounds == 0 {
			rounds = advise.MinRounds(len(candidates)) + 2
		}
		a.Advice, err = advise.Run(ctx, &h, candidates, rounds, func(ctx context.Context) (advise.Sample, error) {
			v, err := probe.Measure(ctx)
			if _, arrived := v["p50_us"]; err == nil && !arrived {
				// All took longer than the measurement.
				us := float64(f.duration.Microseconds())
				v["p50_us"], v["p99_us"], v["p999_us"] = us, us, us
			}
			return advise.Sample{P50: v["p50_us"], P99: v["p99_us"], P999: v["p999_us"], Lost: v["lost"]}, err
		}, progress.Step)
		return err
	})
	a.LoadAfter = loadAverage()
	return a, err
}

// loadAverage is that of the last minute, "" where it is not known.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

func (t *tool) printAdvice(a advice) error {
	out := bufio.NewWriter(t.stdout)
	table := cli.NewTable("candidate", "p50", "p99", "p99.9", ">lost", "verdict")
	for _, v := range append([]advise.Verdict{a.Control}, a.Verdicts...) {
		if v.Refused != "" {
			table.Add(v.Name, "-", "-", "-", "-", "refused: "+v.Refused)
			continue
		}
		table.Add(v.Name, v.P50, v.P99, v.P999, fmt.Sprintf("%+.0f", v.Lost), verdictOf(v))
	}
	if err := table.Print(out); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nRatios to the unchanged machine: medians of %d rounds with sign-test bounds; the error rate of all comparisons together is 5 %%.\n", a.Rounds)
	fmt.Fprintf(out, "%s, Linux %s; %d nodes, %.0f packets/s, %v s each; load average before %s, after %s.\nHardware interrupts are not compared: the line has none.\n\n",
		a.Machine, a.Kernel, a.Nodes, a.Rate, a.DurationS, a.LoadBefore, a.LoadAfter)
	if a.Recommended == "" {
		fmt.Fprintf(out, "Recommended: nothing. %s.\n", a.Why)
	} else {
		fmt.Fprintf(out, "Recommended: scon pin apply %s. %s.\n", a.Recommended, a.Why)
	}
	return out.Flush()
}

// verdictOf says what a candidate was.
func verdictOf(v advise.Verdict) string {
	switch {
	case v.Better && v.Worse:
		return "better and worse"
	case v.Better:
		return "better"
	case v.Worse:
		return "worse"
	}
	return "no difference"
}
