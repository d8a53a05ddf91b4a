package hooks

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/changes"
)

// newUnhooked returns Hooks of a namespace in which nothing is hooked. goOn is called where
// Hooks waits.
func newUnhooked(t *testing.T, goOn func(h *Hooks)) *Hooks {
	t.Helper()
	log, _ := newLog()
	var h *Hooks
	h, err := New(Options{
		Datapath: new(datapath.Datapath), Logger: log,
		Owner:         func(string) (discover.Container, bool) { return discover.Container{}, false },
		HasConentries: func(int) bool { return false },
		GoOn: func(wait func()) {
			goOn(h)
			wait()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func wantDue(t *testing.T, h *Hooks) {
	t.Helper()
	if !h.Unsettled() {
		t.Error("rules may be read, and the heartbeat be written")
	}
	select {
	case <-h.Due():
	case <-time.After(5 * time.Second):
		t.Error("no scan follows")
	}
}

// A change that is noted while something else than a scan waits is followed by a scan.
func TestNotedOutsideScan(t *testing.T) {
	h := newUnhooked(t, func(h *Hooks) {
		h.Note(changes.Event{Kind: changes.Filter, Topology: true, Stale: true})
	})
	p := &Port{Port: discover.Port{Index: removedIndex, Name: "veth1", Kind: "veth"}, end: func() {}}
	h.ports[p.Index] = p
	h.SetContainer(Identified{port: p})
	wantDue(t, h)
}

// A filter that comes at a port that is being hooked is taken up before anything goes
// express.
func TestFilterWhileHooking(t *testing.T) {
	h := newUnhooked(t, func(*Hooks) {})
	h.schedule.begin()
	h.Note(changes.Event{Kind: changes.Filter, Ifindex: 77, Topology: true, Stale: true})
	h.schedule.end()
	wantDue(t, h)
}

// A scan that fails is repeated, and nothing counts as taken up until then.
func TestFailedScan(t *testing.T) {
	h := newUnhooked(t, func(*Hooks) {})
	h.scanner.Close() // any error of netlink
	h.Note(changes.Event{Kind: changes.Filter, Topology: true, Stale: true})
	h.Update()
	wantDue(t, h)
}

// Routes that come and go all the time are scanned for, and packets go express meanwhile: the
// decisions that they concern are withdrawn.
func TestRoutesUnsettleNothing(t *testing.T) {
	h := newUnhooked(t, func(*Hooks) {})
	h.Note(changes.Event{Kind: changes.Route, Topology: true, Stale: true})
	if h.Unsettled() {
		t.Error("no heartbeat is written")
	}
	select {
	case <-h.Due():
	case <-time.After(5 * time.Second):
		t.Error("no scan follows")
	}
}
