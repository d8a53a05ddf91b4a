package startup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scon-project/scon/internal/config"
)

// At most the limit is inside, all are admitted, and none is left.
func TestGate(t *testing.T) {
	g := newGates(config.Limits{Cgroup: 3, Timeout: time.Minute})
	var inside, most atomic.Int64
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			id := fmt.Sprint(i)
			g.enter(StageCgroup, id)
			for n := inside.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			time.Sleep(time.Millisecond)
			inside.Add(-1)
			g.leave(StageCgroup, id)
		})
	}
	all.Wait()
	if most.Load() > 3 {
		t.Errorf("%d were inside at a time", most.Load())
	}
	if s := g.states()[StageCgroup]; s.Inside != 0 || s.Waiting != 0 || s.Late != 0 {
		t.Errorf("%+v", s)
	}
}

// A waiter is admitted after the timeout.
func TestGateTimeout(t *testing.T) {
	g := newGates(config.Limits{StartVM: 1, Timeout: 10 * time.Millisecond})
	g.enter(StageStartVM, "dead")
	if waited := g.enter(StageStartVM, "late"); waited < 10*time.Millisecond {
		t.Errorf("waited %v", waited)
	}
	if s := g.states()[StageStartVM]; s.Late != 1 || s.Inside != 2 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// The slot of a container that does not return is freed.
func TestGateStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGates(config.Limits{Timeout: time.Second})
		g.enter(StageCgroup, "dead")
		if s := g.states()[StageCgroup]; s.Inside != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(stuck + time.Second)
		if s := g.states()[StageCgroup]; s.Inside != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Waits in nested stages share one timeout.
func TestGateWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGates(config.Limits{AddCNI: 1, AttachIf: 1, Timeout: 20 * time.Second})
		g.enter(StageAddCNI, "slow")
		time.AfterFunc(5*time.Second, func() { g.leave(StageAddCNI, "slow") })
		g.enter(StageAttachIf, "dead")
		began := time.Now()
		g.enter(StageAddCNI, "c")
		g.enter(StageAttachIf, "c")
		if waited := time.Since(began); waited != 20*time.Second {
			t.Errorf("waited %v", waited)
		}
		g.leave(StageAttachIf, "c")
		g.leave(StageAddCNI, "c")
		if len(g.waited) != 0 {
			t.Errorf("kept: %v", g.waited)
		}
	})
}

// A raised limit admits waiters.
func TestGateSet(t *testing.T) {
	g := newGates(config.Limits{AddCNI: 1, Timeout: time.Minute})
	g.enter(StageAddCNI, "a")
	in := make(chan struct{})
	go func() { g.enter(StageAddCNI, "b"); close(in) }()
	for g.states()[StageAddCNI].Waiting != 1 {
		time.Sleep(time.Millisecond)
	}
	g.set(config.Limits{Timeout: time.Minute})
	<-in
}

func TestStageLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stages")
	l, err := openStageLog(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range logged + 10 {
		l.add(Event{Container: fmt.Sprint(i), Stage: StageNetNS, BeginNS: int64(i)})
	}
	events, next := l.since(0)
	if len(events) != logged || events[0].BeginNS != 10 || next != logged+10 {
		t.Errorf("%d events from %d, next %d", len(events), events[0].BeginNS, next)
	}
	if events, _ := l.since(next - 1); len(events) != 1 {
		t.Errorf("%d events after the last but one", len(events))
	}
	l.close()
	b, err := os.ReadFile(path)
	if err != nil || strings.Count(string(b), "\n") < logged {
		t.Errorf("%d lines, %v", strings.Count(string(b), "\n"), err)
	}
}
