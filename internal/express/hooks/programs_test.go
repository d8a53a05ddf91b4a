package hooks

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// removedIndex is an ifindex without a device.
const removedIndex = math.MaxInt32

// newLog returns a logger that keeps its lines of any level.
func newLog() (*slog.Logger, *bytes.Buffer) {
	text := new(bytes.Buffer)
	return slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug})), text
}

// wantRemoved fails unless the log says that a device was removed, and no error.
func wantRemoved(t *testing.T, log *bytes.Buffer) {
	t.Helper()
	if text := log.String(); !strings.Contains(text, deviceRemoved) || strings.Contains(text, "level=ERROR") {
		t.Errorf("log:\n%s", text)
	}
}

// A device that is removed while its programs are read is no error, and no device
// without programs of others.
func TestProgramsOfRemovedDevice(t *testing.T) {
	log, text := newLog()
	p := newPrograms(func() tcfilter.Own { return nil }, log)
	at := place{removedIndex, ebpf.AttachTCXIngress}
	p.left[at] = "contested"
	hook := datapath.FromContainer
	if changed, moves := p.poll(map[place]*datapath.Hook{at: &hook}, true, time.Now()); changed != "" || len(moves) > 0 {
		t.Errorf("changed %q, moves %v", changed, moves)
	}
	if len(p.left) > 0 || len(p.seen) > 0 {
		t.Errorf("left %v, seen %v", p.left, p.seen)
	}
	wantRemoved(t, text)
}

// A program that others detach comes back a few times in a minute; then the device is left
// alone, and tried again a minute later.
func TestProgramDetached(t *testing.T) {
	log, _ := newLog()
	p := newPrograms(func() tcfilter.Own { return nil }, log)
	var there tcfilter.Arrangement
	p.arranged = func(_ int, _ ebpf.AttachType, known uint64) (tcfilter.Arrangement, bool, error) {
		return there, known == there.Revision, nil
	}
	at, hook, now := place{7, ebpf.AttachTCXIngress}, datapath.FromContainer, time.Now()
	poll := func(hook *datapath.Hook, own bool) (moves int) {
		if own != there.Own || there.Revision == 0 {
			there = tcfilter.Arrangement{Revision: there.Revision + 1, Own: own}
		}
		now = now.Add(time.Second)
		_, all := p.poll(map[place]*datapath.Hook{at: hook}, true, now)
		return len(all)
	}
	for n := range maxMoves {
		poll(&hook, true)
		if moves := poll(&hook, false); moves != 1 || p.why(7) != "" {
			t.Fatalf("detached %d times: %d moves, left %q", n+1, moves, p.why(7))
		}
	}
	poll(&hook, true)
	if moves := poll(&hook, false); moves != 0 || !strings.Contains(p.why(7), "detached again and again") {
		t.Errorf("once more: %d moves, left %q", moves, p.why(7))
	}
	if poll(nil, false); p.why(7) == "" {
		t.Error("tried again at once")
	}
	now = now.Add(calm)
	if poll(nil, false); p.why(7) != "" {
		t.Errorf("left for good: %q", p.why(7))
	}
}

// A device whose programs cannot be read stays regular until they can.
func TestProgramsUnreadable(t *testing.T) {
	log, text := newLog()
	p := newPrograms(func() tcfilter.Own { return nil }, log)
	var failure error
	var now tcfilter.Arrangement
	p.arranged = func(_ int, _ ebpf.AttachType, known uint64) (tcfilter.Arrangement, bool, error) {
		return now, failure == nil && known == now.Revision, failure
	}
	at := place{7, ebpf.AttachTCXEgress}
	poll := func(hook *datapath.Hook) string {
		changed, _ := p.poll(map[place]*datapath.Hook{at: hook}, true, time.Now())
		return changed
	}
	hook := datapath.ToContainer
	now = tcfilter.Arrangement{Revision: 3, Own: true}
	if changed := poll(&hook); changed != "" || p.why(7) != "" {
		t.Fatalf("readable: changed %q, left %q", changed, p.why(7))
	}
	failure = fmt.Errorf("query: %w", unix.EPERM)
	if changed := poll(&hook); changed == "" || p.why(7) != failure.Error() {
		t.Fatalf("unreadable: changed %q, left %q", changed, p.why(7))
	}
	if changed := poll(nil); changed != "" || p.why(7) == "" {
		t.Errorf("still unreadable: changed %q, left %q", changed, p.why(7))
	}
	if n := strings.Count(text.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors logged, want 1:\n%s", n, text)
	}
	failure = nil
	for _, revision := range []uint64{3, 0} { // 0: a kernel without tcx
		p.left[at], p.seen[at] = "x", arrangement{revision: unreadable, foreign: "x"}
		now = tcfilter.Arrangement{Revision: revision}
		if changed := poll(nil); changed == "" || p.why(7) != "" {
			t.Errorf("readable again, revision %d: changed %q, left %q", revision, changed, p.why(7))
		}
	}
}

// A port that is removed while its delivery is read keeps what was set: it is not
// taken for one without programs of others.
func TestDeliveryOfRemovedPort(t *testing.T) {
	for _, kind := range []string{discover.Netkit, "veth"} {
		log, text := newLog()
		d := delivery{dp: new(datapath.Datapath), log: log, newGeneration: func(reason string) { t.Errorf("new generation: %s", reason) },
			hasConentries: func(int) bool { return true }}
		p := &Port{Port: discover.Port{Index: removedIndex, Name: "veth1", Kind: kind, Qdisc: "noqueue"}}
		p.delivery.queue = "as it was"
		d.set(p)
		if p.delivery.queue != "as it was" {
			t.Errorf("%s: delivery %+v", kind, p.delivery)
		}
		wantRemoved(t, text)
	}
}

// Where programs cannot be read, express packets are assumed to skip some.
func TestNetkitProgramsOfRemovedPort(t *testing.T) {
	log, _ := newLog()
	d := delivery{dp: new(datapath.Datapath), log: log}
	has := d.netkitPrograms(&Port{Port: discover.Port{Index: removedIndex, Kind: discover.Netkit}})
	if has.past == "" || !errors.Is(has.err, unix.ENODEV) {
		t.Errorf("%+v", has)
	}
}
