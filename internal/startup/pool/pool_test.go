package pool

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scon-project/scon/internal/config"
)

// maker makes and counts namespaces, which are numbers.
type maker struct {
	made, dropped atomic.Int64
	err           atomic.Pointer[error]
}

func (m *maker) pool(t *testing.T, c config.Pool) *Pool {
	p := New(Options{
		Config: c,
		Make: func() (Namespace, error) {
			if err := m.err.Load(); err != nil {
				return nil, *err
			}
			return int(m.made.Add(1)), nil
		},
		Drop:   func(Namespace) error { m.dropped.Add(1); return nil },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	p.setPressure(func() time.Duration { return 0 })
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if taken := p.Stats().Taken; uint64(m.made.Load()-m.dropped.Load()) != taken {
			t.Errorf("%d made, %d dropped, %d taken", m.made.Load(), m.dropped.Load(), taken)
		}
	})
	return p
}

// setPressure sets the time in which a task waited for a CPU.
func (p *Pool) setPressure(waited func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pressure.read = func() (time.Duration, error) { return waited(), nil }
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not: " + what)
		}
	}
}

func TestFillsToTarget(t *testing.T) {
	m := new(maker)
	p := m.pool(t, config.Pool{WarmTarget: 5, Minimum: 1, Maximum: 20, MemoryLimit: 1 << 30, Cooldown: time.Minute})
	eventually(t, "five are ready", func() bool { return p.Stats().Ready == 5 })
	for i := range 5 {
		if n, ok := p.Take(); !ok || n != i+1 {
			t.Errorf("took %v, %v", n, ok)
		}
	}
	eventually(t, "filled again", func() bool { return p.Stats().Ready == 5 })
}

// small is a pool of at most one namespace, which make makes.
func small(make func() (Namespace, error), drop func(Namespace) error) *Pool {
	return New(Options{
		Config: config.Pool{WarmTarget: 1, Minimum: 1, Maximum: 1, MemoryLimit: 1 << 30, Cooldown: time.Minute},
		Make:   make,
		Drop:   drop,
		Logger: slog.New(slog.DiscardHandler),
	})
}

// Shed waits for a namespace in preparation.
func TestShedsWhatIsBeingMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, goOn := 0, make(chan struct{})
		var dropped []Namespace
		p := small(func() (Namespace, error) {
			begun++
			<-goOn
			return begun, nil
		}, func(n Namespace) error {
			dropped = append(dropped, n)
			return nil
		})
		synctest.Wait()
		shed := make(chan bool, 1)
		go func() { shed <- p.Shed() }()
		synctest.Wait()
		if len(shed) > 0 {
			t.Errorf("shed %v while the only one was being made", <-shed)
		}
		close(goOn)
		if !<-shed || len(dropped) != 1 || dropped[0] != 1 {
			t.Errorf("shed %v, want the first one", dropped)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A closed pool blocks no caller.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := small(func() (Namespace, error) { return nil, errors.New("no more") }, nil)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Fill(t.Context(), 1); !errors.Is(err, ErrClosed) {
			t.Errorf("Fill: %v", err)
		}
	})
}

// After a burst the pool expects another one until the cooldown ends.
func TestFollowsDemand(t *testing.T) {
	m := new(maker)
	p := m.pool(t, config.Pool{WarmTarget: 2, Minimum: 1, Maximum: 8, MemoryLimit: 1 << 30, Cooldown: 3 * time.Second})
	for range 20 {
		p.Take()
	}
	if s := p.Stats(); s.Target != 8 {
		t.Errorf("the target is %d, want the maximum, 8", s.Target)
	}
	eventually(t, "eight are ready", func() bool { return p.Stats().Ready == 8 })
	eventually(t, "two are ready", func() bool { return p.Stats().Ready == 2 })
}

// While tasks wait for a CPU, the refill waits, unless few namespaces are ready.
func TestLeavesCPUs(t *testing.T) {
	m := new(maker)
	p := m.pool(t, config.Pool{WarmTarget: 5, Minimum: 2, Maximum: 20, MemoryLimit: 1 << 30, Cooldown: time.Minute})
	eventually(t, "five are ready", func() bool { return p.Stats().Ready == 5 })
	var waited time.Duration
	p.setPressure(func() time.Duration { waited += time.Hour; return waited })
	begin := time.Now()
	for range 4 {
		p.Take()
	}
	eventually(t, "the minimum is ready", func() bool { return p.Stats().Ready >= 2 })
	eventually(t, "five are ready again", func() bool { return p.Stats().Ready == 5 })
	if took := time.Since(begin); took < patience {
		t.Errorf("the refill took %v in spite of the pressure", took)
	}
}

// In a stream of containers that keeps the CPUs busy, the pool makes no namespaces; if CPUs
// are idle, it makes the minimum.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(maker)
		p := m.pool(t, config.Pool{WarmTarget: 5, Minimum: 2, Maximum: 20, MemoryLimit: 1 << 30, Cooldown: time.Minute})
		eventually(t, "five are ready", func() bool { return p.Stats().Ready == 5 })
		stream := func() {
			for range 100 {
				p.Take()
				time.Sleep(quiet / 2)
			}
		}
		var waited time.Duration
		p.setPressure(func() time.Duration { waited += time.Hour; return waited })
		stream()
		if made := m.made.Load(); made != 5 {
			t.Errorf("%d were made beside a stream that takes the CPUs", made-5)
		}
		p.setPressure(func() time.Duration { return waited })
		stream()
		if made := m.made.Load(); made < 50 {
			t.Errorf("%d were made beside a stream that leaves time", made-5)
		}
	})
}

func TestMemoryLimit(t *testing.T) {
	p := new(maker).pool(t, config.Pool{WarmTarget: 2, Maximum: 100, MemoryLimit: 4 * config.NamespaceMemory, Cooldown: time.Minute})
	if err := p.Fill(context.Background(), 50); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.Ready != 4 {
		t.Errorf("%d are ready, want 4", s.Ready)
	}
}

func TestFillTellsWhy(t *testing.T) {
	m := new(maker)
	broken := errors.New("no kernel")
	m.err.Store(&broken)
	p := m.pool(t, config.Pool{WarmTarget: 2, Maximum: 100, MemoryLimit: 1 << 30, Cooldown: time.Minute})
	if err := p.Fill(context.Background(), 5); !errors.Is(err, broken) {
		t.Errorf("Fill: %v", err)
	}
	if _, ok := p.Take(); ok {
		t.Error("took what was not made")
	}
	m.err.Store(nil)
	eventually(t, "two are ready", func() bool { return p.Stats().Ready >= 2 })
}

func TestSheds(t *testing.T) {
	m := new(maker)
	p := m.pool(t, config.Pool{WarmTarget: 2, Maximum: 100, MemoryLimit: 1 << 30, Cooldown: time.Minute})
	eventually(t, "two are ready", func() bool { return p.Stats().Ready == 2 })
	if !p.Shed() {
		t.Error("nothing to shed")
	}
}

func TestNoPool(t *testing.T) {
	m := new(maker)
	p := m.pool(t, config.Pool{Maximum: 100, MemoryLimit: 1 << 30, Cooldown: time.Minute})
	if _, ok := p.Take(); ok || p.Stats().Target != 0 || m.made.Load() != 0 {
		t.Errorf("a pool of none: %+v", p.Stats())
	}
}
