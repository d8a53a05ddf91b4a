package advise

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/test/bed/fixture"
)

var errFault = errors.New("a fault on purpose")

// kernel has no veths, and restarts what it is asked to. A device has a thread while its file
// says so.
type kernel struct {
	root    string
	threads map[string]pin.Thread
}

func (*kernel) Veths(string, []pin.Namespace) (map[string]pin.Veth, error) { return nil, nil }
func (*kernel) SetFeatures(string, string, map[string]bool) error          { return nil }
func (*kernel) RestartIrqbalance() error                                   { return nil }

func (k *kernel) Threads(_, device string) ([]pin.Thread, error) {
	threaded, err := os.ReadFile(filepath.Join(k.root, "sys/class/net", device, "threaded"))
	if err != nil || strings.TrimSpace(string(threaded)) == "0" {
		delete(k.threads, device)
		return nil, nil
	}
	if t, ok := k.threads[device]; ok {
		return []pin.Thread{t}, nil
	}
	return []pin.Thread{{Name: device, CPUs: pin.CPUs{0, 1}}}, nil
}

func (k *kernel) SetThread(t pin.Thread) error {
	k.threads[t.Name] = t
	return nil
}

// Features of every device are those of one that may merge datagrams.
func (*kernel) Features(string, string) (map[string]bool, error) {
	return map[string]bool{"rx-udp-gro-forwarding": false}, nil
}

// virtual is a virtual machine.
func virtual(t testing.TB) *pin.Host {
	t.Helper()
	root, err := os.MkdirTemp("/dev/shm", "scon-advise-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := fixture.Unpack("../../internal/pin/testdata/vm.txtar", root); err != nil {
		t.Fatal(err)
	}
	return &pin.Host{Root: root, State: filepath.Join(root, "state"), Kernel: &kernel{root, make(map[string]pin.Thread)}}
}

func capture(t testing.TB, h *pin.Host) pin.Snapshot {
	t.Helper()
	s, err := h.Capture()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// unchanged fails if a plan is applied, or its settings were left.
func unchanged(t testing.TB, h *pin.Host, before pin.Snapshot) {
	t.Helper()
	if status, err := h.Inspect(); err != nil || status.Applied {
		t.Errorf("%+v, %v", status, err)
	}
	if is := capture(t, h); !reflect.DeepEqual(is, before) {
		t.Errorf("%+v is left, it was %+v", is, before)
	}
}

// machineThat measures a made-up machine: the latency that a candidate's
// governor gives, with noise.
func machineThat(h *pin.Host, noise float64, seed uint64, factors map[string]float64) Measure {
	random := rand.New(rand.NewPCG(seed, 1))
	return func(context.Context) (Sample, error) {
		status, err := h.Inspect()
		if err != nil {
			return Sample{}, err
		}
		factor := 1.0
		if status.Applied {
			factor = factors[status.Plan.Name()]
		}
		value := func(base float64) float64 { return base * factor * (1 + noise*random.NormFloat64()) }
		return Sample{P50: value(10), P99: value(20), P999: value(50)}, nil
	}
}

func advised(t testing.TB, seed uint64, noise float64, factors map[string]float64) Advice {
	t.Helper()
	h := virtual(t)
	before := capture(t, h)
	candidates, err := Candidates(capture(t, h), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range candidates {
		names = append(names, c.Name)
		if _, ok := factors[c.Name]; !ok {
			factors[c.Name] = 1
		}
	}
	a, err := Run(t.Context(), h, candidates, MinRounds(len(candidates))+2, machineThat(h, noise, seed, factors), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Verdicts) != len(candidates) {
		t.Errorf("%d verdicts of %q", len(a.Verdicts), names)
	}
	unchanged(t, h, before)
	return a
}

// Nothing is recommended where nothing is better.
func TestAdviseNothing(t *testing.T) {
	for seed := range uint64(5) {
		if a := advised(t, seed, 0.1, map[string]float64{}); a.Recommended != "" {
			t.Errorf("recommended %+v", a)
		}
	}
}

// What is better beyond noise is recommended, the best of it.
func TestAdviseBest(t *testing.T) {
	a := advised(t, 1, 0.02, map[string]float64{"--policy single": 0.8, "--policy numa": 0.7, "--policy spread --steer rps": 3})
	if a.Recommended != "--policy numa" || !strings.HasPrefix(a.Why, "better beyond noise: p50 0.") {
		t.Errorf("advice %+v", a)
	}
	for _, v := range a.Verdicts {
		if v.Worse != (v.Name == "--policy spread --steer rps") {
			t.Errorf("verdict %+v", v)
		}
	}
}

// A machine that drifts within a round gives no result.
func TestAdviseUnsteady(t *testing.T) {
	h := virtual(t)
	candidates, err := Candidates(capture(t, h), nil)
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	a, err := Run(t.Context(), h, candidates, 20, func(context.Context) (Sample, error) {
		runs++
		v := 10 + float64(runs%(len(candidates)+2))
		return Sample{P50: v, P99: v, P999: v}, nil
	}, nil)
	if err != nil || a.Recommended != "" || !strings.Contains(a.Why, "too unsteady") {
		t.Errorf("advice %+v, %v", a, err)
	}
}

// More lost packets are worse, however fast the others are.
func TestLossIsWorse(t *testing.T) {
	is, was := make([]Sample, 20), make([]Sample, 20)
	for i := range is {
		is[i], was[i] = Sample{1, 1, 1, 1}, Sample{2, 2, 2, 0}
	}
	if v := compare("x", is, was, 1); !v.Better || !v.Worse || v.Lost != 20 {
		t.Errorf("verdict %+v", v)
	}
}

// A measurement that fails, or is interrupted, leaves nothing behind.
func TestAdviseFails(t *testing.T) {
	h := virtual(t)
	before := capture(t, h)
	candidates, err := Candidates(capture(t, h), nil)
	if err != nil {
		t.Fatal(err)
	}
	for stop := range 4 {
		runs := 0
		_, err := Run(t.Context(), h, candidates, 20, func(context.Context) (Sample, error) {
			if runs++; runs > stop {
				return Sample{}, errFault
			}
			return Sample{1, 1, 1, 0}, nil
		}, nil)
		if !errors.Is(err, errFault) {
			t.Fatal(err)
		}
		unchanged(t, h, before)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, h, candidates, 20, machineThat(h, 0, 1, nil), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestAdviseRefuses(t *testing.T) {
	h := virtual(t)
	candidates, err := Candidates(capture(t, h), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), h, candidates, 3, nil, nil); !errors.Is(err, ErrRounds) {
		t.Error(err)
	}
	if _, err := h.Apply(candidates[0].Plan); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), h, candidates, 20, nil, nil); !errors.Is(err, ErrApplied) {
		t.Error(err)
	}
}

// The bounds hold the true median as often as they say.
func TestMedianRatio(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	const repeats, allowed = 4000, 0.05
	for _, n := range []int{6, 12, 25} {
		missed := 0
		for range repeats {
			ratios := make([]float64, n)
			for i := range ratios {
				ratios[i] = 1 + 0.3*random.ExpFloat64() - 0.3*0.6931 // median 1
			}
			if r := medianRatio(ratios, allowed); r.below() || r.above() {
				missed++
			}
		}
		if rate := float64(missed) / repeats; rate > allowed+0.01 {
			t.Errorf("%d rounds: wrong in %.3f of the cases", n, rate)
		}
	}
	if got := medianRatio([]float64{3, 1, 2}, 0.3); fmt.Sprint(got) != "2.00 [1.00, 3.00]" {
		t.Errorf("got %v", got)
	}
}

// Plans that come to the same are tried once.
func TestCandidates(t *testing.T) {
	all, err := Candidates(capture(t, virtual(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	// With two CPUs and one queue, core is what spread is, and so is single.
	want := []string{"--policy none --merge-udp", "--policy spread", "--policy numa"}
	for i, name := range want {
		if i >= len(names) || names[i] != name {
			t.Errorf("candidates %q, want to begin with %q", names, want)
			break
		}
	}
}
