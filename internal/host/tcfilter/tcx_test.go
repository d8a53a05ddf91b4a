package tcfilter

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/test/bed/nstest"
)

// A side of a device whose programs have not changed is only asked for its revision; each
// change of them has another one.
func TestArrangedKnown(t *testing.T) {
	ns := nstest.New(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	nstest.Do(t, ns, func() {
		const lo, at = 1, ebpf.AttachTCXIngress
		var own Own
		before, _, err := own.Arranged(lo, at, 0)
		if err != nil {
			t.Fatal(err)
		}
		if before.Revision == 0 {
			t.Skip("this kernel has no tcx (Linux 6.6)")
		}
		if alone, err := revision(lo, at); alone != before.Revision || err != nil {
			t.Errorf("revision %d, %v; want %d", alone, err, before.Revision)
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: lo, Program: prog, Attach: at})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		after, current, err := own.Arranged(lo, at, before.Revision)
		if err != nil || current || len(after.Foreign()) != 1 {
			t.Errorf("after a program has come: %+v, current %v, %v", after, current, err)
		}
		if again, current, err := own.Arranged(lo, at, after.Revision); err != nil || !current || again.Foreign() != nil {
			t.Errorf("without a change: %+v, current %v, %v", again, current, err)
		}
	})
}
