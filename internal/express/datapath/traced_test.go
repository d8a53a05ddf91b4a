package datapath_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// needsEnds skips a test where the kernel traces no functions: it refuses a program that
// does nothing as well.
func needsEnds(t *testing.T, b *bed) {
	t.Helper()
	err := b.FollowsEnds()
	if err == nil {
		return
	}
	empty, refused := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFEntry, AttachTo: "nf_ct_delete", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if refused != nil {
		t.Skipf("missing: programs at the kernel's functions: %v", refused)
	}
	empty.Close()
	t.Fatal(err)
}

// conntracked adds the flow's connection to conntrack in a namespace, and returns how to
// delete it.
func conntracked(t *testing.T, ns string, f flow) (remove func()) {
	t.Helper()
	o := f.conn.Orig
	tuple := fmt.Sprintf("-s %v -d %v -p %d --sport %d --dport %d", o.Src.Addr(), o.Dst.Addr(), o.Proto, o.Src.Port(), o.Dst.Port())
	r := f.conn.Reply
	state := ""
	if f.out.enter.proto == tcp {
		state = "--state ESTABLISHED"
	}
	nstest.Run(t, ns, fmt.Sprintf("conntrack -I %s -r %v -q %v --reply-port-src %d --reply-port-dst %d --timeout 100 %s",
		tuple, r.Src.Addr(), r.Dst.Addr(), r.Src.Port(), r.Dst.Port(), state))
	return func() {
		t.Helper()
		nstest.Run(t, ns, "conntrack -D "+tuple)
	}
}

// needsMessages listens to the ends of connections by conntrack's messages.
func needsMessages(t *testing.T, b *bed) {
	t.Helper()
	nstest.Do(t, b.ns, func() {
		passed, err := conntrack.WatchDestroy(t.Context(), b.EndFilter())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for d := range passed {
				t.Errorf("the daemon is woken by %+v", d)
			}
		})
	})
}

// ofEnds are the ways in which the programs hear that a connection leaves conntrack.
var ofEnds = map[string]func(*testing.T, *bed){"functions": needsEnds, "messages": needsMessages}

// A connection that leaves conntrack is express no more from that moment on. One of another
// namespace is another connection.
func TestForgottenConnection(t *testing.T) {
	for name, needs := range ofEnds {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			needs(t, b)
			other := nstest.New(t)
			for _, f := range []flow{masqueraded(tcp), masqueraded(udp), published(tcp), masqueraded6(tcp), masqueraded6(udp)} {
				b.express(f)
				b.events()
				theirs, ours := conntracked(t, other, f), conntracked(t, b.ns, f)
				theirs()
				b.goesExpress(f.out)
				b.goesExpress(f.in)
				ours()
				b.goesRegular(f.out, "closed")
				b.goesRegular(f.in, "closed")
				b.wantForgotten(b.half(f.out.enter, b.port), b.half(f.in.enter, 0))
			}
			if b.EndsLost() {
				t.Error("an end is said to be lost")
			}
		})
	}
}

// The same holds for a connection of two containers, whichever opened it.
func TestForgottenBetweenContainers(t *testing.T) {
	for name, needs := range ofEnds {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			needs(t, b)
			there := contable.End{Port: b.wire, Bridge: b.wire}
			for _, f := range []flow{masqueraded(udp), published(tcp), masqueraded6(tcp)} {
				if err := b.table.Join(b.compose(f), there); err != nil {
					t.Fatal(err)
				}
				remove := conntracked(t, b.ns, f)
				here, peer := b.half(f.out.enter, b.port), b.half(f.in.enter, b.wire)
				if here.State != datapath.SlotOpen || peer.State != datapath.SlotOpen {
					t.Fatalf("the halves have the states %d and %d, want them open", here.State, peer.State)
				}
				remove()
				b.wantForgotten(here, peer)
			}
		})
	}
}

// wantForgotten expects the end of the only Conentry, and removes it.
func (b *bed) wantForgotten(halves ...*datapath.Half) {
	b.t.Helper()
	for _, h := range halves {
		if h.State != datapath.SlotClosed || h.Generation != 0 {
			b.t.Errorf("the half has state %d and generation %d, want it closed", h.State, h.Generation)
		}
	}
	events := b.events()
	if len(events) != 1 || !events[0].Closed || events[0].Reset || b.table.At(events[0].Slot) == nil {
		b.t.Fatalf("events %+v, want the end of the connection", events)
	}
	b.table.Retire(b.table.At(events[0].Slot))
	b.release()
}

// The end of a connection that finds the event buffer full is known to be lost.
func TestForgottenWhileBusy(t *testing.T) {
	b := newBedWith(t, func(o *datapath.Options) { o.Admit = 2 })
	needsEnds(t, b)
	f := masqueraded(udp)
	b.express(f)
	remove := conntracked(t, b.ns, f)
	many := masqueraded(udp).out
	for port := range uint16(20000) {
		many.enter.dst = netip.AddrPortFrom(many.enter.dst.Addr(), 1000+port)
		for range 2 {
			runProgram(t, b.ns, b.Program(many.start), many.enter.bytes(), skb{Mark: many.inMark, Ifindex: uint32(b.port), IngressIfindex: uint32(b.wire)})
		}
	}
	remove()
	if h := b.half(f.out.enter, b.port); h.State != datapath.SlotClosed {
		t.Errorf("the half has state %d, want it closed", h.State)
	}
	if !b.EndsLost() || b.EndsLost() {
		t.Error("want the end lost, once")
	}
}
