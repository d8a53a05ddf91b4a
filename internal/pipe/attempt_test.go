package pipe

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/bpf"
)

func TestIsPermanent(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EMFILE: false, unix.ENFILE: false, unix.ENOMEM: false, unix.EBUSY: false, unix.EAGAIN: false, unix.ENOENT: false,
		unix.ENOSYS: true, unix.EPERM: true, unix.EINVAL: true, ebpf.ErrNotSupported: true,
		&ebpf.VerifierError{Cause: unix.EACCES}:                   true,
		&ebpf.VerifierError{Cause: unix.ENOMEM}:                   false,
		errors.Join(unix.EPERM, fmt.Errorf("x: %w", unix.EMFILE)): false,
	} {
		if got := isPermanent(fmt.Errorf("load: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

func TestAttemptBacksOff(t *testing.T) {
	var a attempt
	now := time.Now()
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
		if !a.due(now) {
			t.Fatal("not due")
		}
		a.done(unix.EMFILE, now)
		if a.due(now.Add(want - 1)) {
			t.Errorf("due before %v", want)
		}
		now = now.Add(want)
	}
	a.done(nil, now)
	if a.err != nil || !a.due(now) {
		t.Errorf("%+v", a)
	}
	a.done(unix.ENOSYS, now)
	if a.due(now.Add(24 * time.Hour)) {
		t.Error("an unsupported program is loaded again")
	}
}

// A load that fails for lack of files, memory or a cgroup is retried later; one that the
// kernel does not support is not retried.
func TestEngineComesBack(t *testing.T) {
	b, err := New(Options{Socket: filepath.Join(t.TempDir(), "p"), MemoryLimit: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var loads int
	var fails error
	b.newProgram = func() (*bpf.Program, error) {
		loads++
		if fails != nil {
			return nil, fails
		}
		return &bpf.Program{}, nil
	}
	load := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.loadProgram(1 << BPF)
		return b.choose(1<<BPF|1<<Unix, near) == BPF
	}
	for _, fails = range []error{unix.EMFILE, unix.ENOMEM, unix.EBUSY} {
		if load() {
			t.Errorf("%v: the load succeeds", fails)
		}
		before := loads
		if load(); loads != before {
			t.Errorf("%v: retried at once", fails)
		}
		b.programs.after = time.Now()
	}
	if fails = nil; !load() {
		t.Error("the load is not retried")
	}
	b.program, fails = nil, unix.ENOSYS
	load()
	before := loads
	if load() || loads != before {
		t.Error("an unsupported program is loaded again")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
