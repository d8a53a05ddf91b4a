package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// fakeBed logs its calls.
type fakeBed struct {
	log     []string
	measure func(mode Mode, step Step) (Sample, error)
	failing Mode // ready returns an error for this mode
}

func (b *fakeBed) ready(_ context.Context, mode Mode) error {
	b.log = append(b.log, "ready "+mode.Name)
	if mode == b.failing {
		return errors.New("not ready")
	}
	return nil
}

func (b *fakeBed) clear() error {
	b.log = append(b.log, "clear")
	return nil
}

func (b *fakeBed) take(_ context.Context, mode Mode, step Step) (Sample, error) {
	b.log = append(b.log, mode.Name+" "+step.Name)
	return b.measure(mode, step)
}

func (b *fakeBed) distance() (Distance, error) { return Distance{NS: 50, Class: Near}, nil }

type quiet struct{}

func (quiet) Step(int, int, string) {}
func (quiet) Done()                 {}

var twoSteps = Experiment{
	Name:   "test",
	Modes:  []Mode{Native, Express},
	Rounds: 2,
	Steps: []Step{
		{Name: "a", Metrics: []Metric{{"rate", "1/s"}}},
		{Name: "b", Metrics: []Metric{{"time", "us"}}},
	},
}

func oneOfEach(_ Mode, step Step) (Sample, error) {
	return Sample{Values: map[string]float64{step.Metrics[0].Name: 1}}, nil
}

func TestModesAlternate(t *testing.T) {
	bed := &fakeBed{measure: oneOfEach}
	result, err := runRounds(t.Context(), twoSteps, Options{Progress: quiet{}}, bed)
	if err != nil {
		t.Fatal(err)
	}
	round := []string{
		"ready native", "native a", "native b", "clear",
		"ready express", "express a", "express b", "clear",
	}
	if want := slices.Concat(round, round); !slices.Equal(bed.log, want) {
		t.Errorf("order\n%q, want\n%q", bed.log, want)
	}
	if n := len(result.Modes["express"]["time"]); n != 2 {
		t.Errorf("%d samples, want one of each round", n)
	}
}

func TestAFailedSampleIsAnError(t *testing.T) {
	bed := &fakeBed{measure: func(mode Mode, step Step) (Sample, error) {
		if mode == Express && step.Name == "a" {
			return Sample{}, errors.New("only 3 % of the packets went express")
		}
		return oneOfEach(mode, step)
	}}
	result, err := runRounds(t.Context(), twoSteps, Options{Progress: quiet{}}, bed)
	if err == nil || !strings.Contains(err.Error(), "only 3 %") {
		t.Errorf("error %v, want the sample's", err)
	}
	if len(result.Errors) != 2 {
		t.Errorf("errors %q, want one of each round", result.Errors)
	}
	if n := len(result.Modes["express"]["rate"]); n != 0 {
		t.Errorf("%d samples of a step that failed", n)
	}
	if n := len(result.Modes["express"]["time"]); n != 2 {
		t.Errorf("%d samples of the step after the failed one, want 2", n)
	}
	if _, ok := result.Ratios["express/native"]["rate"]; ok {
		t.Error("there is a ratio without samples")
	}
}

func TestASampleIsTakenAgain(t *testing.T) {
	failures := 0
	bed := &fakeBed{measure: func(mode Mode, step Step) (Sample, error) {
		if mode == Express && step.Name == "a" && failures < 2 {
			failures++
			return Sample{}, errors.New("peer edge ended unexpectedly")
		}
		return oneOfEach(mode, step)
	}}
	result, err := runRounds(t.Context(), twoSteps, Options{Progress: quiet{}}, bed)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Retries) != 2 || !strings.Contains(result.Retries[0], "round 1, express, a: peer edge ended") {
		t.Errorf("retries %q, want both failures", result.Retries)
	}
	if n := len(result.Modes["express"]["rate"]); n != 2 {
		t.Errorf("%d samples, want one of each round", n)
	}
}

func TestAModeThatIsNotReadyIsLeftOut(t *testing.T) {
	bed := &fakeBed{measure: oneOfEach, failing: Express}
	result, err := runRounds(t.Context(), twoSteps, Options{Progress: quiet{}}, bed)
	if err == nil || len(result.Errors) != 2 {
		t.Errorf("error %v and %q, want one of each round", err, result.Errors)
	}
	if slices.Contains(bed.log, "express a") {
		t.Error("a mode that was not ready was measured")
	}
	if n := len(result.Modes["native"]["rate"]); n != 2 {
		t.Errorf("%d samples of the other mode, want 2", n)
	}
	if bed.log[len(bed.log)-1] != "clear" {
		t.Errorf("the bed was not cleared after all: %q", bed.log)
	}
}

func TestInterruptedRunKeepsItsSamples(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	bed := &fakeBed{}
	bed.measure = func(mode Mode, step Step) (Sample, error) {
		if mode == Express {
			interrupt()
			return Sample{}, context.Canceled
		}
		return oneOfEach(mode, step)
	}
	result, err := runRounds(ctx, twoSteps, Options{Progress: quiet{}}, bed)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the cancellation", err)
	}
	if result == nil {
		t.Fatal("no result")
	}
	if !result.Interrupted || len(result.Errors) != 0 {
		t.Errorf("interrupted %v, errors %q; want true and none", result.Interrupted, result.Errors)
	}
	if n := len(result.Modes["native"]["rate"]); n != 1 {
		t.Errorf("%d samples kept, want 1", n)
	}
	if want := []string{"ready native", "native a", "native b", "clear", "ready express", "express a", "clear"}; !slices.Equal(bed.log, want) {
		t.Errorf("order %q, want %q", bed.log, want)
	}
}

// everything is a kernel that supports every mode.
var everything = kernel{flowtable: true, netkit: true, btf: true}

// Mode flowtable is measured on every kernel that supports it.
func TestFlowtableIsMeasured(t *testing.T) {
	for _, e := range []Experiment{Quick, Short(1), Cost} {
		if got := e.supported(everything).Modes; !slices.Equal(got, e.Modes) || !slices.Contains(got, Flowtable) {
			t.Errorf("%s on a kernel with a flowtable: modes %v", e.Name, got)
		}
		got := e.supported(kernel{netkit: true, btf: true}).Modes
		if slices.Contains(got, Flowtable) || len(got) != len(e.Modes)-1 {
			t.Errorf("%s on a kernel without a flowtable: modes %v", e.Name, got)
		}
	}
}

func TestNetkitIsMeasured(t *testing.T) {
	for _, e := range []Experiment{Quick, Cost} {
		if with, without := e.supported(everything), e.supported(kernel{flowtable: true, btf: true}); !with.hasNetkit() || without.hasNetkit() || len(without.Modes) != len(e.Modes)-1 {
			t.Errorf("%s: modes %v on a kernel with netkit, %v on another", e.Name, with.Modes, without.Modes)
		}
	}
}

// Short connections are measured where a program can read conntrack's.
func TestExpressShortIsMeasured(t *testing.T) {
	for _, e := range []Experiment{Short(1), Cost} {
		with, without := e.supported(everything).Modes, e.supported(kernel{flowtable: true, netkit: true}).Modes
		if !slices.Contains(with, ExpressShort) || slices.Contains(without, ExpressShort) || len(without) != len(e.Modes)-1 {
			t.Errorf("%s: modes %v on a kernel with BTF, %v on another", e.Name, with, without)
		}
	}
}

func TestOnly(t *testing.T) {
	e, err := Quick.Only([]string{"container", "native"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.Modes, []Mode{Container, Native}) {
		t.Errorf("modes %v", e.Modes)
	}
	if _, err := Quick.Only([]string{"nativ"}); err == nil {
		t.Error("an unknown mode was taken")
	}
}
