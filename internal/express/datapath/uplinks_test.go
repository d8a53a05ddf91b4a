package datapath_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// wires are the forms of uplinks.
var wires = map[string]datapath.Delivery{
	"usual": {}, "without MAC headers": {Bare: true}, "bridged": {Bridged: true, Longest: longest},
}

// infoOf is what the kernel says of the program that Attach would attach at a hook of the wire.
func (b *bed) infoOf(h datapath.Hook) *ebpf.ProgramInfo {
	b.t.Helper()
	p, err := b.ProgramAt(h, b.wire)
	if err != nil {
		b.t.Fatal(err)
	}
	info, err := p.Info()
	if err != nil {
		b.t.Fatal(err)
	}
	return info
}

// The programs of other forms than usual come with the first uplink that needs them, and
// are known as SCON's from then on.
func TestProgramsComeWithUplinks(t *testing.T) {
	b := newBed(t)
	few := maps.Clone(b.Programs())
	for name, how := range wires {
		before := maps.Clone(b.Programs())
		for range 2 {
			if err := b.Track(b.wire, how); err != nil {
				t.Fatal(err)
			}
			for _, h := range datapath.UplinkHooks {
				id, _ := b.infoOf(h).ID()
				if had := before[id]; had != (name == "usual") || !b.Programs()[id] {
					t.Errorf("%s: %s was SCON's: %v, is: %v", name, h, had, b.Programs()[id])
				}
			}
		}
	}
	for id := range few {
		if !b.Programs()[id] {
			t.Errorf("program %d is not SCON's any more", id)
		}
	}
	if n := len(b.Programs()); n != len(few)+4 {
		t.Errorf("%d programs, were %d", n, len(few))
	}
}

// mostVerified is how many instructions the verifier may walk through for the programs of
// ports and uplinks: 408,000 took it 0.65 s of a CPU of an EPYC. Linux 6.1 walks through
// 359,000 of them, 6.18 through 262,000. That was 257,000 and 196,000 before what is bridged
// to outside, short connections and IPIP had ways of their own, a third each.
const mostVerified = 400_000

// The verifier does not walk the same way once for each value that a number may have.
func TestVerifierWalksOnce(t *testing.T) {
	b := newBed(t)
	verified := make(map[string]uint32)
	add := func(h datapath.Hook, form string) {
		n, ok := b.infoOf(h).VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not say how many instructions its verifier walked through (Linux 5.16)")
		}
		verified[h.String()+" "+form] = n
	}
	for form, how := range wires {
		if err := b.Track(b.wire, how); err != nil {
			t.Fatal(err)
		}
		for _, h := range datapath.UplinkHooks {
			add(h, form)
		}
	}
	add(datapath.FromContainer, "")
	add(datapath.ToContainer, "")
	var all uint32
	for _, n := range verified {
		all += n
	}
	if all > mostVerified {
		t.Errorf("the verifier walks through %d instructions, want at most %d: %v", all, mostVerified, verified)
	}
}

// What the verifier refuses keeps its uplinks regular, and nothing else; it is not asked
// again.
func TestRefusedUplink(t *testing.T) {
	b := newBed(t)
	b.Refuse(&ebpf.VerifierError{Cause: unix.EINVAL})
	b.trackWire(true)
	attach := func(h datapath.Hook) (err error) {
		nstest.Do(t, b.ns, func() { err = b.Attach(h, b.wire) })
		return err
	}
	for range 2 {
		if err := attach(datapath.FromWire); !errors.Is(err, unix.EINVAL) {
			t.Errorf("attached a program that was refused: %v", err)
		}
	}
	attached, err := b.Attached()
	if err != nil || slices.Contains(attached, datapath.Attached{Hook: datapath.FromWire, Ifindex: b.wire}) {
		t.Errorf("attached: %v, %v", attached, err)
	}
	b.trackWire(false)
	for _, h := range datapath.UplinkHooks {
		if err := attach(h); err != nil {
			t.Errorf("another form: %v", err)
		}
	}
}
