package bench

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/nstest"
)

// TestMain runs this executable as a traffic peer or a daemon when the bed starts
// it as one.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], peerArgs) {
		peer.Main(os.Stdin, os.Stdout)
	}
	if len(os.Args) > 1 && os.Args[1] == "daemon" {
		os.Exit(fakeDaemon(os.Args[2:]))
	}
	done := nstest.AsSCON()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		done()
		os.Exit(status)
	}))
}

// tiny returns quick and short in modes native and container. Each step is just
// long enough to count something.
func tiny() Experiment {
	e := Quick
	e.Modes = []Mode{Native, Container}
	e.Rounds = 1
	e.Steps = slices.Concat(Quick.Steps, Short(20).Steps)
	for i := range e.Steps {
		e.Steps[i].Spec.Duration = 20 * time.Millisecond
		e.Steps[i].Spec.WarmUp = 5
	}
	return e
}

func TestTinyRunLeavesNothingBehind(t *testing.T) {
	needRoot(t)
	checkNothingIsLeft := nstest.Left(t)
	e := tiny()
	result, err := Run(t.Context(), e, Options{Progress: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range e.Modes {
		for _, m := range e.metrics() {
			samples := result.Modes[mode.Name][m.Name]
			if len(samples) != 1 || samples[0] <= 0 {
				t.Errorf("%s %s: samples %v, want one above 0", mode.Name, m.Name, samples)
			}
		}
	}
	for _, s := range result.Samples {
		if s.UplinkPackets == 0 {
			t.Errorf("%s %s: no packet crossed the uplink", s.Mode, s.Step)
		}
	}
	checkNothingIsLeft("sconbench" + strconv.Itoa(os.Getpid()))
}

func TestInterruptedRunLeavesNothingBehind(t *testing.T) {
	needRoot(t)
	checkNothingIsLeft := nstest.Left(t)
	interrupt := &interruptAt{after: 3}
	ctx := interrupt.context(t)
	e := tiny()
	e.Steps[3].Spec.Duration = time.Minute // the interrupt comes during this step
	result, err := Run(ctx, e, Options{Progress: interrupt})
	if err == nil || result == nil || !result.Interrupted {
		t.Fatalf("result %v, error %v; want an interrupted result", result, err)
	}
	if n := len(result.Samples); n != 3 {
		t.Errorf("%d samples kept, want 3", n)
	}
	checkNothingIsLeft("sconbench" + strconv.Itoa(os.Getpid()))
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test builds a lab: run it as root (sudo make test)")
	}
}
