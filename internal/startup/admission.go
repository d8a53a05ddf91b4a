package startup

import (
	"slices"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/config"
)

// gates limit the containers in a stage at a time, so that waiting containers do not
// contend for the kernel's locks (Understanding Network Startup for Secure
// Containers, section 5.2). A container waits no longer than the timeout, waits in
// nested stages included, and is never refused.
type gates struct {
	mu      sync.Mutex
	limits  config.Limits
	inside  map[Stage]map[string]time.Time // when each container entered
	waiting map[Stage][]*waiter            // in order of arrival
	late    map[Stage]uint64               // admitted by the timeout
	waited  map[string]time.Duration       // of containers that waited, until they are in no stage
}

// waiter is a container that waits for admission.
type waiter struct {
	container string
	admitted  chan struct{} // closed at admission
}

// stuck is how long a container may be in a stage before its slot is reused: the
// process that should have reported the end has died.
const stuck = 30 * time.Second

func newGates(l config.Limits) *gates {
	return &gates{
		limits: l, inside: make(map[Stage]map[string]time.Time),
		waiting: make(map[Stage][]*waiter), late: make(map[Stage]uint64),
		waited: make(map[string]time.Duration),
	}
}

// limit returns the limit of a stage; 0 is none.
func (g *gates) limit(s Stage) int {
	switch s {
	case StageNetNS:
		return g.limits.NetNS
	case StageAddCNI:
		return g.limits.AddCNI
	case StageCgroup:
		return g.limits.Cgroup
	case StageAttachIf:
		return g.limits.AttachIf
	default:
		return g.limits.StartVM
	}
}

// enter waits until a container is admitted to a stage and returns the time it took.
func (g *gates) enter(s Stage, container string) (waited time.Duration) {
	began := time.Now()
	g.mu.Lock()
	if len(g.waiting[s]) == 0 && g.hasRoom(s, began) {
		g.admit(s, container, began)
		g.mu.Unlock()
		return 0
	}
	w := &waiter{container: container, admitted: make(chan struct{})}
	g.waiting[s] = append(g.waiting[s], w)
	timeout := g.limits.Timeout - g.waited[container]
	g.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-w.admitted:
	case <-timer.C:
		g.proceed(s, w)
	}
	waited = time.Since(began)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waited[container] += waited
	return waited
}

// proceed admits a waiter after the timeout.
func (g *gates) proceed(s Stage, w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting[s], w); i >= 0 { // else it was just admitted
		g.waiting[s] = slices.Delete(g.waiting[s], i, i+1)
		g.late[s]++
		g.admit(s, w.container, time.Now())
	}
}

// leave ends a container's stage; the container may be in none.
func (g *gates) leave(s Stage, container string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inside[s], container)
	if _, has := g.waited[container]; has && !g.isInside(container) {
		delete(g.waited, container)
	}
	g.callNext(s)
}

func (g *gates) isInside(container string) bool {
	for _, in := range g.inside {
		if _, is := in[container]; is {
			return true
		}
	}
	return false
}

// timeout returns the longest time that a container waits.
func (g *gates) timeout() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits.Timeout
}

// set changes the limits.
func (g *gates) set(l config.Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits = l
	for _, s := range Stages {
		g.callNext(s)
	}
}

// callNext admits waiters while the limit allows.
func (g *gates) callNext(s Stage) {
	now := time.Now()
	for len(g.waiting[s]) > 0 && g.hasRoom(s, now) {
		w := g.waiting[s][0]
		g.waiting[s] = g.waiting[s][1:]
		g.admit(s, w.container, now)
		close(w.admitted)
	}
}

func (g *gates) hasRoom(s Stage, now time.Time) bool {
	limit := g.limit(s)
	if limit == 0 || len(g.inside[s]) < limit {
		return true
	}
	g.freeStuck(s, now)
	return len(g.inside[s]) < limit
}

// freeStuck frees the slots of containers whose end was not reported.
func (g *gates) freeStuck(s Stage, now time.Time) {
	for container, since := range g.inside[s] {
		if now.Sub(since) > stuck {
			delete(g.inside[s], container)
			delete(g.waited, container)
		}
	}
}

func (g *gates) admit(s Stage, container string, now time.Time) {
	if g.inside[s] == nil {
		g.inside[s] = make(map[string]time.Time)
	}
	g.inside[s][container] = now
}

// GateState is the state of a gate.
type GateState struct {
	Limit, Inside, Waiting int
	Late                   uint64
}

func (g *gates) states() map[Stage]GateState {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[Stage]GateState)
	now := time.Now()
	for _, s := range Stages {
		g.freeStuck(s, now)
		all[s] = GateState{g.limit(s), len(g.inside[s]), len(g.waiting[s]), g.late[s]}
	}
	return all
}
