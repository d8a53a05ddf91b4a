package pipe

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/cores"
	"github.com/scon-project/scon/internal/pipe/engine"
)

// The engine follows from what both sides accept, what this machine supports, and the
// distance.
func TestChoose(t *testing.T) {
	const usual = 1<<BPF | 1<<Unix // what the library accepts by default
	broken := &Broker{programs: attempt{err: errMessage}}
	forbids := &Broker{opts: Options{Engines: []Engine{Unix, Sealed}}}
	copies := &Broker{copier: struct{ engine.Carrier }{}}
	for _, c := range []struct {
		b    *Broker
		both engineSet
		d    distance
		want Engine
	}{
		{&Broker{}, usual, near, BPF},
		{&Broker{}, usual, far, Unix},
		{broken, usual, near, Unix},
		{forbids, usual | 1<<Sealed, near, Sealed},
		{forbids, usual, near, Unix},
		{forbids, 1 << BPF, near, 0},
		{broken, 1 << BPF, near, 0},
		{&Broker{}, 1 << BPF, far, BPF},
		{&Broker{}, 1 << Unix, near, Unix},
		{copies, usual | 1<<Sealed | 1<<Copier, near, Sealed},
		{&Broker{}, usual | 1<<Sealed, far, Unix},
		{copies, 1<<Copier | 1<<Unix, near, Copier},
		{&Broker{}, 1<<Copier | 1<<Unix, near, Unix},
		{&Broker{}, 1 << Copier, near, 0},
		{&Broker{}, 1<<7 | 1, near, 0},
	} {
		if got := c.b.choose(c.both, c.d); got != c.want {
			t.Errorf("%v at %d: %v, want %v", c.both, c.d, got, c.want)
		}
	}
	if !mustChoose(usual) || mustChoose(1<<Unix) || mustChoose(1<<BPF|1<<Sealed) {
		t.Error("mustChoose")
	}
}

// A distance is cached, and an error of the measurement is not one of the caller.
func TestDistances(t *testing.T) {
	t.Parallel()
	var d distances
	d.init()
	for _, small := range []bool{false, true} {
		first := d.between(0, 0, small)
		measured := len(d.of)
		if second := d.between(0, 0, small); first != second || len(d.of) != measured {
			t.Errorf("%v, then %v: %v", first, second, d.of)
		}
	}
	if got := d.between(0, 1<<30, false); got != near {
		t.Errorf("to a process that does not exist: %v", got)
	}
}

// A calibration completes for both piece sizes, and returns an error for a CPU that does not
// exist.
func TestCalibration(t *testing.T) {
	t.Parallel()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	a, b := cores.Nearest(&set, &set)
	if a == b {
		t.Skip("missing: a second CPU")
	}
	for _, piece := range []int{1 << 10, 64 << 10} {
		ring, socket, err := calibration{rounds: 2, pieces: 2500, piece: piece, patience: 20 * time.Second}.run(a, b)
		if err != nil || ring <= 0 || socket <= 0 {
			t.Errorf("pieces of %d: %v, %v, %v", piece, ring, socket, err)
		}
	}
	for _, o := range []struct{ a, b int }{{a, 1023}, {1023, b}} {
		if _, _, err := calibrations[false].run(o.a, o.b); err == nil {
			t.Errorf("on CPUs %d and %d", o.a, o.b)
		}
	}
}
