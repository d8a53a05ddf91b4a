package datapath_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Verdicts of a program (linux/pkt_cls.h).
const (
	unspec   = -1
	shot     = 2
	redirect = 7
)

// Marks in skb.CB (bpf/lib/order.h).
const (
	cbExpress = 0x53434f4e
	cbToken   = 0x544f4b4e
	cbCheck   = 0x6e6f6373
)

// skb is struct __sk_buff. The kernel takes the named fields from a test.
type skb struct {
	_              [2]uint32
	Mark           uint32
	_              [5]uint32
	Priority       uint32
	IngressIfindex uint32
	Ifindex        uint32
	_              uint32
	CB             [5]uint32
	_              [19]uint32
	_              [2]uint64
	_, GSOSegs     uint32
	_              uint64
	GSOSize, _     uint32
	_              uint64
}

// result is what a program made of a packet.
type result struct {
	verdict int
	data    []byte
	skb     skb
	reason  string // that was counted, "" for none
}

// run runs the program of a hook on one packet, at the device where a packet
// arrives at it unless ctx names another, while the daemon lives.
func (b *bed) run(h datapath.Hook, data []byte, ctx skb) result {
	b.t.Helper()
	for {
		var alive time.Time
		r := b.runAfter(func() { b.liven(); alive = time.Now() }, h, data, ctx)
		// On a busy machine the sign may be too old when the program runs, which does nothing then.
		if r.reason != "inert" || time.Since(alive) < time.Second/2 {
			return r
		}
	}
}

// liven shows a sign of life. A packet that has entered the regular path did so
// just now: a test takes longer than a packet does.
func (b *bed) liven() {
	now := b.jiffies()
	if s := b.Settings(); s.LastProbe != 0 {
		s.LastProbe = now
	}
}

// runSilent does the same without a sign of life.
func (b *bed) runSilent(h datapath.Hook, data []byte, ctx skb) result {
	b.t.Helper()
	return b.runAfter(func() {}, h, data, ctx)
}

// runAfter runs it after prepare. The programs at the end of the regular path read no
// packet that took longer than two jiffies to them, as it may on a busy machine: it has
// had no effect then, and is sent again.
func (b *bed) runAfter(prepare func(), h datapath.Hook, data []byte, ctx skb) result {
	b.t.Helper()
	for {
		tracked := b.tracked()
		r := b.runOnce(prepare, h, data, ctx)
		unread := (r.reason == "" || r.reason == "no_entry") && b.tracked() == tracked
		if h != datapath.ToWire && h != datapath.ToContainer || !unread || !b.isLate() {
			return r
		}
	}
}

// tracked counts the halves that track a packet.
func (b *bed) tracked() (n int) {
	for i := range b.Memory().Halves[0] {
		if b.Memory().Halves[0][i].Probe != 0 {
			n++
		}
	}
	return n
}

// isLate reports whether the programs expect no tracked packet at the end of the regular
// path any more. It shows a sign of life.
func (b *bed) isLate() bool {
	b.t.Helper()
	const recentTicks = 2 // bpf/lib/clock.h
	last := b.Settings().LastProbe
	return last != 0 && b.jiffies()-last > recentTicks
}

func (b *bed) runOnce(prepare func(), h datapath.Hook, data []byte, ctx skb) result {
	b.t.Helper()
	at, other := b.port, b.wire
	if h == datapath.ToWire || h == datapath.FromWire {
		at, other = other, at
	}
	if ctx.Ifindex == 0 {
		ctx.Ifindex = uint32(at)
	}
	if ctx.IngressIfindex == 0 {
		ctx.IngressIfindex = uint32(other)
	}
	before := b.counters(int(ctx.Ifindex))
	prepare()
	program, err := b.ProgramAt(h, int(ctx.Ifindex))
	if err != nil {
		b.t.Fatal(err)
	}
	r := runProgram(b.t, b.ns, program, data, ctx)
	r.reason = counted(b.t, before, b.counters(int(ctx.Ifindex)))
	return r
}

func runProgram(t testing.TB, ns string, p *ebpf.Program, data []byte, ctx skb) (r result) {
	t.Helper()
	out := make([]byte, len(data)+64)
	opts := ebpf.RunOptions{Data: data, DataOut: out, Context: ctx, ContextOut: &r.skb}
	nstest.Do(t, ns, func() {
		defer onFirstCPU(t)()
		verdict, err := p.Run(&opts)
		if err != nil {
			t.Fatalf("running the program: %v", err)
		}
		r.verdict = int(int32(verdict))
	})
	r.data = opts.DataOut
	return r
}

// onFirstCPU keeps the calling thread on one CPU until the function is called that
// it returns: all programs read the same values of each CPU's own.
func onFirstCPU(t testing.TB) (back func()) {
	t.Helper()
	var before, first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !before.IsSet(cpu) {
		cpu++
	}
	first.Set(cpu)
	set := func(cpus *unix.CPUSet) {
		if err := unix.SchedSetaffinity(0, cpus); err != nil {
			t.Error(err)
		}
	}
	set(&first)
	return func() { set(&before) }
}

func (b *bed) counters(dev int) datapath.Counters {
	b.t.Helper()
	c, err := b.Counters(dev)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// counted is the one reason that lies between two readings, if any.
func counted(t testing.TB, before, after datapath.Counters) (reason string) {
	t.Helper()
	var sum uint64
	for name, n := range after.Reasons {
		if n -= before.Reasons[name]; n > 0 {
			sum += n
			reason = name
		}
	}
	if sum > 1 || after.Packets-before.Packets != sum {
		t.Fatalf("one packet: counters went from %+v to %+v", before, after)
	}
	return reason
}
