package datapath_test

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// needTCX skips a test on kernels from before tcx.
func needTCX(t *testing.T) {
	t.Helper()
	if !hasTCX(t) {
		t.Skip("no tcx: this kernel is older than Linux 6.6")
	}
}

func hasTCX(t testing.TB) bool {
	t.Helper()
	version, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	return version >= 6<<16|6<<8
}

// A program that was attached before stays, and sees all that enters before SCON, and all
// that leaves after SCON.
func TestTCXOrder(t *testing.T) {
	needTCX(t)
	b := newHookBed(t, false)
	theirs := foreign(t)
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		nstest.Do(t, b.ns, func() {
			l, err := link.AttachTCX(link.TCXOptions{Interface: b.wire, Program: theirs, Attach: at})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		})
	}
	b.attach(datapath.UplinkHooks, b.wire)
	id, in, out := programID(t, theirs), programID(t, b.Program(datapath.FromWire)), programID(t, b.Program(datapath.ToWire))
	if got := b.running(b.wire, false); !slices.Equal(got, []ebpf.ProgramID{id, in}) {
		t.Errorf("ingress runs %v, want %d, then SCON's %d", got, id, in)
	}
	if got := b.running(b.wire, true); !slices.Equal(got, []ebpf.ProgramID{out, id}) {
		t.Errorf("egress runs %v, want SCON's %d, then %d", got, out, id)
	}

	b.detach(datapath.UplinkHooks, b.wire)
	for _, egress := range []bool{false, true} {
		if got := b.running(b.wire, egress); !slices.Equal(got, []ebpf.ProgramID{id}) {
			t.Errorf("detached: %v run, want %d", got, id)
		}
	}
}

// A kernel that has learnt tcx gets rid of the filters from before.
func TestTCXAfterClsact(t *testing.T) {
	needTCX(t)
	b := newHookBed(t, true)
	b.attach(datapath.PortHooks, b.port)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b.load(false)
	if b.Mode() != "tcx" {
		t.Fatalf("the mode is %s", b.Mode())
	}
	b.wantAttached()
	if b.hasClsact("port") {
		t.Error("the qdisc was left behind")
	}
}

// running are the programs that a device runs, in their order: tcx, then
// filters.
func (b *bed) running(dev int, egress bool) (ids []ebpf.ProgramID) {
	b.t.Helper()
	at := ebpf.AttachTCXIngress
	if egress {
		at = ebpf.AttachTCXEgress
	}
	nstest.Do(b.t, b.ns, func() {
		if !hasTCX(b.t) {
			return
		}
		result, err := link.QueryPrograms(link.QueryOptions{Target: dev, Attach: at})
		if err != nil {
			b.t.Fatal(err)
		}
		for _, p := range result.Programs {
			ids = append(ids, p.ID)
		}
	})
	for _, f := range b.filters(dev, egress) {
		ids = append(ids, ebpf.ProgramID(f.Id))
	}
	return ids
}
