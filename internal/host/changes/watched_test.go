package changes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestMain(m *testing.M) {
	check.Main(m)
}

// patience is how long a test waits for what has to come.
const patience = 10 * time.Second

// watched is a namespace, of the same shape in all tests, and the events of
// it:
//
//	container c: eth0 --- vc of br0, 10.1.0.1/24     container d: eth0 --- vd of br0
//	outside:     eth0 --- up0, 10.2.0.1/24
type watched struct {
	t      testing.TB
	ns     string
	c      string
	lock   string // the lock file of iptables-legacy
	events <-chan Event
	cancel context.CancelFunc
	fences int
}

func newDevice(t testing.TB) *watched {
	w := &watched{t: t, ns: nstest.New(t), c: nstest.New(t), lock: filepath.Join(t.TempDir(), "xtables.lock")}
	d, outside := nstest.New(t), nstest.New(t)
	w.run(fmt.Sprintf(`
		ip link add br0 address 02:00:00:00:01:01 type bridge
		ip addr add 10.1.0.1/24 dev br0
		ip link add vc type veth peer name eth0 netns %s
		ip link add vd type veth peer name eth0 netns %s
		ip link add up0 type veth peer name eth0 netns %s
		ip addr add 10.2.0.1/24 dev up0
		ip link set vc master br0
		ip link set vd master br0
		ip link set br0 up
		ip link set vc up
		ip link set vd up
		ip link set up0 up`, w.c, d, outside))
	for _, ns := range []string{w.c, d, outside} {
		nstest.Run(t, ns, "ip link set eth0 up")
	}
	// Carrier is announced late; what is awaited here does not come later on.
	for _, up := range []string{"br0", "vc", "vd", "up0"} {
		for end := time.Now().Add(patience); !strings.Contains(nstest.Run(t, w.ns, "ip link show "+up), "state UP"); {
			if time.Now().After(end) {
				t.Fatalf("%s does not come up", up)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return w
}

func (w *watched) run(commands string) {
	w.t.Helper()
	nstest.Run(w.t, w.ns, commands)
}

// watch starts the watcher; it has ended when the test ends.
func (w *watched) watch(opts Options, l limits) {
	w.t.Helper()
	l.lock = w.lock
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	nstest.Do(w.t, w.ns, func() { w.events, err = watch(ctx, opts, l) })
	if err != nil {
		cancel()
		w.t.Fatal(err)
	}
	w.cancel = cancel
	w.t.Cleanup(func() {
		cancel()
		for range w.events {
		}
	})
}

func (w *watched) next() Event {
	w.t.Helper()
	select {
	case e, ok := <-w.events:
		if !ok {
			w.t.Fatal("the channel is closed")
		}
		return e
	case <-time.After(patience):
		w.t.Fatal("no event")
	}
	panic("not reached")
}

// notified runs commands and returns the events that they cause. A rule that is added
// behind them is a fence: what comes before its event was read in order.
func (w *watched) notified(commands string) (events []Event) {
	w.t.Helper()
	w.run(commands)
	w.fences++
	w.run(fmt.Sprintf("ip rule add pref %d table 254", 20000+w.fences))
	for {
		e := w.next()
		if e.Kind == Rule {
			return events
		}
		w.t.Log(e.Kind, e.Ifindex, e.Reason)
		events = append(events, e)
	}
}

// kinds writes events in one line: what each kind meant, and what was stale if not
// everything, in alphabetical order.
func kinds(events []Event) string {
	var words []string
	for _, e := range events {
		s := e.Kind.String()
		if e.Topology {
			s += " topology"
		}
		if e.Stale {
			s += " stale"
		}
		switch {
		case e.Scope.Ports[1] != 0:
			s += " at two ports"
		case e.Scope.Ports[0] != 0:
			s += " at a port"
		}
		switch {
		case e.Kind != FDB && e.Scope.NextHop != MAC{}:
			s += " to " + e.Scope.NextHop.String()
		case e.Scope.Network.IsValid():
			s += " in " + e.Scope.Network.String()
		}
		words = append(words, s)
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), ", ")
}

var roomy = limits{buffer: buffer, rules: buffer, queue: queueLength}
