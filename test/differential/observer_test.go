package differential

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
)

// Offsets in struct __sk_buff.
const (
	skbMark     = 8
	skbPriority = 32
)

// sourceAt is the offset that the observer writes to: the source MAC address
// without its first two bytes.
const sourceAt = 8

// observe attaches a program to device's uplink that writes a packet's mark and
// priority into the packet, since queues and filters there use both. Of the priority
// it writes the bytes of a class such as 1:2.
func observe(t *testing.T, w *world) {
	t.Helper()
	err := w.bed.Do(lab.Device, func() error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{
				asm.LoadMem(asm.R2, asm.R1, skbMark, asm.Word),
				asm.StoreMem(asm.RFP, -8, asm.R2, asm.Byte),
				asm.LoadMem(asm.R2, asm.R1, skbPriority, asm.Word),
				asm.StoreMem(asm.RFP, -7, asm.R2, asm.Byte),
				asm.RSh.Imm(asm.R2, 16),
				asm.StoreMem(asm.RFP, -6, asm.R2, asm.Byte),
				asm.Mov.Imm(asm.R2, sourceAt),
				asm.Mov.Reg(asm.R3, asm.RFP),
				asm.Add.Imm(asm.R3, -8),
				asm.Mov.Imm(asm.R4, 3),
				asm.Mov.Imm(asm.R5, 0),
				asm.FnSkbStoreBytes.Call(),
				asm.Mov.Imm(asm.R0, -1), // continue with the next program
				asm.Return(),
			},
		})
		if err != nil {
			return fmt.Errorf("load the observer: %w", err)
		}
		defer prog.Close()
		uplink, err := net.InterfaceByName(lab.Uplink)
		if err != nil {
			return err
		}
		return attach(t, prog, uplink.Index)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// attach attaches a program at the end of a device's egress.
func attach(t *testing.T, prog *ebpf.Program, index int) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: ebpf.AttachTCXEgress})
	if err == nil {
		t.Cleanup(func() { l.Close() })
		return nil
	}
	if !errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("attach the observer: %w", err)
	}
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the observer's clsact qdisc: %w", err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Protocol: unix.ETH_P_ALL, Priority: 0xfff0,
		},
		Fd: prog.FD(), Name: "observer", DirectAction: true,
	}
	if err := netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("attach the observer as a filter: %w", err)
	}
	return nil
}
