package figures_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/test/bed/nstest"
)

// secondStep is a progress that cancels the run during the second step, as Ctrl-C
// does.
type secondStep struct {
	steps  int
	cancel context.CancelFunc
}

func (s *secondStep) Step(int, int, string) {
	if s.steps++; s.steps == 3 { // each visit reports its first step twice
		time.AfterFunc(300*time.Millisecond, s.cancel)
	}
}

func (*secondStep) Done() {}

func TestInterruptKeepsSamplesAndLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test builds a lab: run it as root (sudo make test)")
	}
	if err := figures.Check([]string{"10"}); err != nil {
		t.Skip(err)
	}
	checkNothingIsLeft := nstest.Left(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	err := figures.Run(ctx, figures.Options{
		IDs: []string{"10"},
		Effort: figures.Effort{Rounds: 1, Intervals: []figures.Interval{
			{Length: time.Millisecond, Messages: 20},
			{Length: time.Second, Messages: 3600}, // the interrupt comes during this step
		}},
		Dir:      dir,
		Progress: &secondStep{cancel: cancel},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the cancellation", err)
	}
	r, err := bench.ReadResult(filepath.Join(dir, "intervals.json"), figures.Experiments()...)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Interrupted || len(r.Samples) != 1 || r.Samples[0].Step != "interval_1ms" {
		t.Errorf("interrupted %v, samples %+v; want the first one", r.Interrupted, r.Samples)
	}
	report, err := os.ReadFile(filepath.Join(dir, "figures.md"))
	if err != nil || !strings.Contains(string(report), "Interrupted") {
		t.Errorf("report %v, want one that says \"Interrupted\":\n%s", err, report)
	}
	checkNothingIsLeft("sconbench" + strconv.Itoa(os.Getpid()))
}
