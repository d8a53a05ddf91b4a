package express_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// counter is another program, which counts packets and lets them pass; those of which first
// goes to "next" it does not count.
type counter struct {
	*ebpf.Program
	seen *ebpf.Map
}

func newCounter(t *testing.T, first ...asm.Instruction) counter {
	t.Helper()
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { seen.Close() })
	const next = -1 // TCX_NEXT
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "theirs", Type: ebpf.SchedCLS,
		License: "GPL",
		Instructions: append(first,
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, seen.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "next"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, next).WithSymbol("next"),
			asm.Return(),
		),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return counter{p, seen}
}

// packets is how many it has counted.
func (c counter) packets(t *testing.T) (n uint64) {
	t.Helper()
	if err := c.seen.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// attach puts the program at a device's ingress or egress, ahead of all others
// or behind them.
func (c counter) attach(b *scontest.Bed, dev string, at ebpf.AttachType, anchor link.Anchor) link.Link {
	b.T.Helper()
	var l link.Link
	err := b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: iface.Index, Program: c.Program, Attach: at, Anchor: anchor})
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { l.Close() })
	return l
}

// sees waits until the program sees every packet of a connection while they are
// express.
func (c counter) sees(t *testing.T, conn *scontest.Connection) {
	t.Helper()
	const pings = 50
	scontest.Eventually(t, "it sees every packet, and they are express", func() error {
		seen, express := c.packets(t), conn.MustFlow().ExpressPackets
		conn.MustPing(pings)
		seen, now := c.packets(t)-seen, conn.MustFlow().ExpressPackets
		if seen < pings || now[0]-express[0] < pings*9/10 || now[1]-express[1] < pings*9/10 {
			return fmt.Errorf("it saw %d of %d, express were %v", seen, pings, [2]uint64{now[0] - express[0], now[1] - express[1]})
		}
		return nil
	})
}

func needTCX(b *scontest.Bed) {
	b.T.Helper()
	if mode := b.Status().Mode; mode != "tcx" {
		b.T.Skipf("no tcx: SCON hooks by %s", mode)
	}
}

// What others attach after SCON sees every packet all the same, and packets go
// express.
func TestForeignProgram(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Service: true})
	needTCX(b)
	c := b.Outgoing("udp", 1).GoExpress()
	for _, tc := range []struct {
		dev    string
		at     ebpf.AttachType
		anchor link.Anchor
	}{
		{"eth0", ebpf.AttachTCXIngress, link.Tail()},
		{"veth1", ebpf.AttachTCXIngress, link.Tail()},
		{"veth1", ebpf.AttachTCXEgress, link.Tail()},
		{"eth0", ebpf.AttachTCXEgress, link.Head()},
	} {
		t.Run(fmt.Sprint(tc.dev, tc.at), func(t *testing.T) {
			b := b.In(t)
			c := c.In(b)
			theirs := newCounter(t)
			l := theirs.attach(b, tc.dev, tc.at, tc.anchor)
			theirs.sees(t, c)
			if n := b.Programs(tc.dev, tc.at); n != 2 {
				t.Errorf("%d programs run, want theirs and SCON's", n)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			c.GoExpress()
		})
	}
	b.WantNoInvalid()
}

// Where packets leave, express ones have the sender's socket, and others have none: IP takes
// it from what it forwards. So filters that ask for it keep connections regular.
func TestSocketAtUplink(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	needTCX(b)
	c := b.Outgoing("udp", 1).GoExpress()
	theirs := newCounter(t, asm.FnGetSocketCookie.Call(), asm.JEq.Imm(asm.R0, 0, "next"))
	theirs.attach(b, "eth0", ebpf.AttachTCXEgress, link.Tail())
	theirs.sees(t, c)
	if err := b.Daemon.Pause(""); err != nil {
		t.Fatal(err)
	}
	before := theirs.packets(t)
	c.MustPing(10)
	if n := theirs.packets(t) - before; n != 0 {
		t.Errorf("%d of 10 regular packets have a socket", n)
	}
}

// What others attach at the bridge sees every packet: those of its containers
// do not go express.
func TestForeignProgramAtBridge(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Service: true})
	needTCX(b)
	c := b.Outgoing("udp", 1).GoExpress()
	theirs := newCounter(t)
	l := theirs.attach(b, "docker0", ebpf.AttachTCXIngress, link.Tail())
	scontest.Eventually(t, "veth1 is skipped", func() error {
		if s := b.Status().Skipped; len(s) != 1 || s[0].Dev != "veth1" || !strings.Contains(s[0].Reason, "docker0 has: tcx program") {
			return fmt.Errorf("skipped: %+v", s)
		}
		return nil
	})
	seen := theirs.packets(t)
	c.MustPing(50)
	if seen = theirs.packets(t) - seen; seen < 50 {
		t.Errorf("it saw %d of 50 packets", seen)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.WaitHooked(1)
	c.GoExpress()
}

// So do XDP programs at the bridge.
func TestXDPAtBridge(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Service: true})
	c := b.Outgoing("udp", 1).GoExpress()
	const pass = 2 // XDP_PASS
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var l link.Link
	err = b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(lab.Bridge)
		if err != nil {
			return err
		}
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: iface.Index, Flags: link.XDPGenericMode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	scontest.Eventually(t, "veth1 is skipped", func() error {
		if s := b.Status().Skipped; len(s) != 1 || s[0].Dev != "veth1" || !strings.Contains(s[0].Reason, "docker0 has: an XDP program") {
			return fmt.Errorf("skipped: %+v", s)
		}
		return nil
	})
	c.MustPing(20)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.WaitHooked(1)
	c.GoExpress()
}

// Hooks that are removed together with their pins come back, and a daemon that
// is killed then is replaced by one that starts without state.
func TestPinsTakenAway(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	needTCX(b)
	in, out := b.Incoming("tcp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
	for _, pattern := range []string{"to_wire_*", "from_*", "*"} {
		for _, pin := range b.Pins(pattern) {
			if err := os.Remove(pin); err != nil {
				t.Fatal(err)
			}
		}
		in.GoExpress()
		out.GoExpress()
	}
	b.Daemon.Kill()
	b.Up()
	in.GoExpress()
	out.GoExpress()
	b.WantNoInvalid()
}

// Hooks whose links another program detaches, which leaves their pins, come back.
func TestLinksDetached(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	needTCX(b)
	in, out := b.Incoming("tcp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
	for _, dev := range []string{"eth0", "veth1"} {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			detachAll(b, dev, at)
			scontest.Eventually(t, "SCON's program is back", func() error {
				if n := b.Programs(dev, at); n != 1 {
					return fmt.Errorf("%d programs at %s, %v", n, dev, at)
				}
				return nil
			})
			in.GoExpress()
			out.GoExpress()
		}
	}
	b.WantNoInvalid()
}

// detachAll detaches all links from a device's ingress or egress.
func detachAll(b *scontest.Bed, dev string, at ebpf.AttachType) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		r, err := link.QueryPrograms(link.QueryOptions{Target: iface.Index, Attach: at})
		if err != nil {
			return err
		}
		for _, p := range r.Programs {
			id, _ := p.LinkID()
			l, err := link.NewFromID(id)
			if err != nil {
				return err
			}
			if err := errors.Join(l.Detach(), l.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
}

// Hooks that are removed together with filters of others come back.
func TestHooksTakenAway(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Clsact: true})
	in, out := b.Incoming("tcp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
	for _, take := range []string{
		"tc filter del dev eth0 egress", "tc filter del dev veth1 ingress", "tc qdisc del dev eth0 clsact", "tc qdisc del dev veth1 clsact",
	} {
		b.Sh(lab.Device, take)
		in.GoExpress()
		out.GoExpress()
	}
	b.WantNoInvalid()
}
