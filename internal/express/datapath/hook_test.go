package datapath_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// modes are both methods to attach. Tests that are true of both run in both.
var modes = map[string]bool{"tcx": false, "clsact": true}

func inEveryMode(t *testing.T, test func(t *testing.T, b *bed)) {
	for mode, force := range modes {
		t.Run(mode, func(t *testing.T) {
			if !force {
				needTCX(t)
			}
			b := newHookBed(t, force)
			if got := b.Mode(); got != mode {
				t.Fatalf("the mode is %s", got)
			}
			test(t, b)
		})
	}
}

// newHookBed is a bed whose programs are attached by clsact if so forced.
func newHookBed(t *testing.T, clsact bool) *bed {
	t.Helper()
	b := &bed{t: t, ns: nstest.New(t), pins: pinDir(t)}
	b.port = addPair(t, b.ns, "port", "inside")
	b.wire = addPair(t, b.ns, "wire", "outside")
	b.load(clsact)
	return b
}

// load is the start of a daemon, in one of the modes.
func (b *bed) load(clsact bool) {
	b.t.Helper()
	o := options(b.pins)
	o.ForceClsact = clsact
	b.reload(o)
}

func (b *bed) attach(hooks []datapath.Hook, dev int) {
	b.t.Helper()
	for _, h := range hooks {
		nstest.Do(b.t, b.ns, func() {
			if err := b.Attach(h, dev); err != nil {
				b.t.Fatal(err)
			}
		})
	}
}

func (b *bed) detach(hooks []datapath.Hook, dev int) {
	b.t.Helper()
	for _, h := range hooks {
		nstest.Do(b.t, b.ns, func() {
			if err := b.Detach(h, dev); err != nil {
				b.t.Fatal(err)
			}
		})
	}
}

func (b *bed) wantAttached(want ...datapath.Attached) {
	b.t.Helper()
	var got []datapath.Attached
	nstest.Do(b.t, b.ns, func() {
		var err error
		if got, err = b.Attached(); err != nil {
			b.t.Fatal(err)
		}
	})
	for _, all := range [][]datapath.Attached{got, want} {
		slices.SortFunc(all, func(a, b datapath.Attached) int { return 8*(a.Ifindex-b.Ifindex) + int(a.Hook-b.Hook) })
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("attached: %v, want %v", got, want)
	}
}

func (b *bed) everywhere() []datapath.Attached {
	return []datapath.Attached{
		{Hook: datapath.FromContainer, Ifindex: b.port}, {Hook: datapath.ToContainer, Ifindex: b.port},
		{Hook: datapath.FromWire, Ifindex: b.wire}, {Hook: datapath.ToWire, Ifindex: b.wire},
	}
}

// foreign loads another program's program, which lets everything pass.
func foreign(t testing.TB) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "foreign",
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, unspec), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func programID(t *testing.T, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// Hooks come and go one by one. A device that is hooked twice runs one program.
func TestAttach(t *testing.T) {
	inEveryMode(t, func(t *testing.T, b *bed) {
		b.wantAttached()
		for range 2 {
			b.attach(datapath.PortHooks, b.port)
			b.attach(datapath.UplinkHooks, b.wire)
			b.wantAttached(b.everywhere()...)
		}
		if ids := b.running(b.port, false); len(ids) != 1 || ids[0] != programID(t, b.Program(datapath.FromContainer)) {
			t.Errorf("programs at the port's ingress: %v", ids)
		}
		b.detach(datapath.PortHooks, b.port)
		b.wantAttached(b.everywhere()[2:]...)
		b.detach(datapath.PortHooks, b.port)
		b.detach(datapath.UplinkHooks, b.wire)
		b.wantAttached()
	})
}

// The programs see the packets of their device and direction.
func TestAttachedProgramsRun(t *testing.T) {
	inEveryMode(t, func(t *testing.T, b *bed) {
		b.attach(datapath.PortHooks, b.port)
		b.attach(datapath.UplinkHooks, b.wire)
		for _, dev := range []int{b.port, b.wire} {
			if err := b.Track(dev, datapath.Delivery{}); err != nil {
				t.Fatal(err)
			}
		}
		f := masqueraded(tcp)
		for _, from := range []struct {
			name string
			dev  int
		}{{"inside", b.port}, {"port", b.port}, {"outside", b.wire}} {
			before := b.counters(from.dev).Reasons["no_entry"]
			openDevice(t, b.ns, from.name).send(f.out.enter.bytes())
			b.await(func() bool { return b.counters(from.dev).Reasons["no_entry"] > before }, "nobody saw a packet from "+from.name)
		}
	})
}

// The next daemon's programs take the place of the earlier one's, which stay
// where they are until then.
func TestProgramsAreReplaced(t *testing.T) {
	inEveryMode(t, func(t *testing.T, b *bed) {
		b.attach(datapath.UplinkHooks, b.wire)
		old := b.running(b.wire, true)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if ids := b.running(b.wire, true); !slices.Equal(ids, old) {
			t.Fatalf("programs %v run without a daemon, want %v", ids, old)
		}

		b.load(modes[b.mode()])
		b.wantAttached(b.everywhere()[2:]...)
		b.attach(datapath.UplinkHooks, b.wire)
		ids := b.running(b.wire, true)
		if len(ids) != 1 || ids[0] == old[0] || ids[0] != programID(t, b.Program(datapath.ToWire)) {
			t.Errorf("programs %v run, were %v", ids, old)
		}
	})
}

// mode is the one this bed was made for.
func (b *bed) mode() string { return filepath.Base(b.t.Name()) }

// Remove works without anything loaded, and leaves nothing.
func TestRemove(t *testing.T) {
	inEveryMode(t, func(t *testing.T, b *bed) {
		b.attach(datapath.PortHooks, b.port)
		b.attach(datapath.UplinkHooks, b.wire)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			nstest.Do(t, b.ns, func() {
				if err := datapath.Remove(b.pins); err != nil {
					t.Fatal(err)
				}
			})
		}
		if _, err := os.Stat(b.pins); !os.IsNotExist(err) {
			t.Errorf("the pins: %v", err)
		}
		for _, dev := range []int{b.port, b.wire} {
			for _, egress := range []bool{false, true} {
				if ids := b.running(dev, egress); len(ids) != 0 {
					t.Errorf("device %d still runs %v", dev, ids)
				}
			}
		}
		if b.hasClsact("port") || b.hasClsact("wire") {
			t.Error("a qdisc was left behind")
		}
	})
}

// A device that is gone is no error, and one that gets its index is hooked as
// any other.
func TestGoneDevice(t *testing.T) {
	inEveryMode(t, func(t *testing.T, b *bed) {
		b.attach(datapath.PortHooks, b.port)
		nstest.Run(t, b.ns, "ip link del port")
		nstest.Do(t, b.ns, func() {
			if err := b.Attach(datapath.FromContainer, 9999); err == nil {
				t.Error("attached to a device that never was")
			}
		})
		nstest.Run(t, b.ns, "ip link add port index "+strconv.Itoa(b.port)+` type veth peer name inside
			ip link set inside up
			ip link set port up`)
		b.attach(datapath.PortHooks, b.port)
		if ids := b.running(b.port, false); len(ids) != 1 {
			t.Errorf("programs at the new device: %v", ids)
		}

		nstest.Run(t, b.ns, "ip link del port")
		b.detach(datapath.PortHooks, b.port)
		b.wantAttached()
	})
}
