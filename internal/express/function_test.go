package express_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// needPrograms skips a test where Netfilter's hooks take no BPF programs.
func needPrograms(t *testing.T) {
	t.Helper()
	if err := features.HaveProgramType(ebpf.Netfilter); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("this kernel has no BPF programs at Netfilter's hooks (Linux 6.4)")
	}
}

// newHalver makes a program at FORWARD that drops every second packet.
func newHalver(b *scontest.Bed) *ebpf.Program {
	b.T.Helper()
	needPrograms(b.T)
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { seen.Close() })
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "halver", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, seen.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "drop"),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
			asm.Add.Imm(asm.R1, 1),
			asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
			asm.Mov.Reg(asm.R0, asm.R1),
			asm.And.Imm(asm.R0, 1), // NF_DROP, NF_ACCEPT
			asm.Return(),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("drop"),
			asm.Return(),
		},
	})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { p.Close() })
	return p
}

// A function at Netfilter's FORWARD that is no rule sees every packet within a
// second of its coming, explain names it, and packets go express again when it
// has gone.
func TestForeignFunction(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Service: true})
	program := newHalver(b)
	c := b.Outgoing("udp", 1).GoExpress()
	var l link.Link
	err := b.Do(lab.Device, func() (err error) {
		l, err = link.AttachNetfilter(link.NetfilterOptions{Program: program, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetForward, Priority: 10})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	scontest.Eventually(t, "every packet is regular, and explain says why", func() error {
		before := b.Status().Totals.ExpressPackets
		for range 20 {
			_, _ = c.Client.Write([]byte("ping"))
		}
		if n := b.Status().Totals.ExpressPackets - before; n > 0 {
			return fmt.Errorf("%d packets went express", n)
		}
		x, err := b.Daemon.Explain(lab.ContainerAddr(1).String())
		if text := fmt.Sprint(x.Findings); err != nil || !strings.Contains(text, "halver") {
			return fmt.Errorf("explain says %s, %v", text, err)
		}
		return nil
	})
	// A daemon that lists links holds a closed one for as long as it lists.
	if err := errors.Join(l.Detach(), l.Close()); err != nil {
		t.Fatal(err)
	}
	b.Outgoing("udp", 1).GoExpress()
}

// While nothing goes express the daemon does not look for such functions, but does so
// before the first connection can: not one packet passes by one that came meanwhile.
func TestForeignFunctionAtRest(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	b := scontest.NewExpress(t, scontest.Layout{})
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "accepter", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	b.Status()                         // the last look
	time.Sleep(500 * time.Millisecond) // more than two heartbeats
	var l link.Link
	err = b.Do(lab.Device, func() (err error) {
		l, err = link.AttachNetfilter(link.NetfilterOptions{Program: program, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetForward, Priority: 10})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	time.Sleep(time.Second) // a look that is due is one before the first connection
	c := b.Outgoing("udp", 1)
	c.MustPing(200)
	scontest.Eventually(t, "the connection is refused, and explain says why", func() error {
		c.MustPing(1)
		x, err := b.Daemon.Explain(lab.ContainerAddr(1).String())
		if text := fmt.Sprint(x.Findings); err != nil || !strings.Contains(text, "BPF program") { // its name takes BTF
			return fmt.Errorf("explain says %s, %v", text, err)
		}
		return nil
	})
	if n := b.Status().Totals.ExpressPackets; n > 0 {
		t.Errorf("%d packets went express", n)
	}
}
