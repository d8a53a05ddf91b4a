package pitfalls

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A packet keeps its delivery time (SO_TXTIME) up to the uplink, whose qdisc delays it
// until then: BBR and fq use it for pacing.
func TestDeliveryTimeIsKept(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	scontest.Socket(t, c.Client, func(fd int) error {
		// struct sock_txtime: clock, flags
		txtime := binary.NativeEndian.AppendUint32(nil, unix.CLOCK_MONOTONIC)
		return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_TXTIME, string(append(txtime, 0, 0, 0, 0)))
	})
	stamp := stampsAtUplink(b, c.Port())
	const count = 20
	send := func() (kept int) {
		t.Helper()
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
		for i := range count {
			at := uint64(now.Nano()) + uint64(i+1)*uint64(time.Millisecond)
			sendAt(t, c.Client, at)
			if _, err := scontest.ReadDatagram(c.Server); err != nil {
				t.Fatal(err)
			}
			if stamp() == at {
				kept++
			}
		}
		return kept
	}
	var express int
	eventuallyExpress(c, count, func() { express = send() })
	if err := b.Daemon.Pause(""); err != nil {
		t.Fatal(err)
	}
	regular := send()
	if regular != count {
		t.Skipf("this kernel keeps the time of %d of %d forwarded packets", regular, count)
	}
	if express != count {
		t.Errorf("%d of %d packets have their delivery time", express, count)
	}
}

// sendAt sends a datagram with a delivery time of CLOCK_MONOTONIC.
func sendAt(t *testing.T, c net.Conn, at uint64) {
	t.Helper()
	control := make([]byte, unix.CmsgSpace(8))
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(8)))
	binary.NativeEndian.PutUint32(control[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(control[12:], unix.SCM_TXTIME)
	binary.NativeEndian.PutUint64(control[unix.CmsgLen(0):], at)
	if _, _, err := c.(*net.UDPConn).WriteMsgUDP([]byte("paced"), control, nil); err != nil {
		t.Fatal(err)
	}
}

// stampsAtUplink records the delivery time of the latest packet to a port that
// left by the uplink, with a program behind SCON's.
func stampsAtUplink(b *scontest.Bed, port uint16) (latest func() uint64) {
	b.T.Helper()
	stamps, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { stamps.Close() })
	const tstamp = 152 // offset in struct __sk_buff
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stamps", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadAbs(scontest.UDPAt, asm.Half),
			asm.JNE.Imm(asm.R0, int32(port), "out"),
			asm.LoadMem(asm.R7, asm.R6, tstamp, asm.DWord),
			asm.LoadMapValue(asm.R1, stamps.FD(), 0),
			asm.StoreMem(asm.R1, 0, asm.R7, asm.DWord),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TC_ACT_UNSPEC: continue with the next program
			asm.Return(),
		},
	})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { program.Close() })
	err = b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(lab.Uplink)
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: iface.Index, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: link.Tail()})
		if errors.Is(err, ebpf.ErrNotSupported) {
			b.T.Skip("no tcx: this kernel is older than Linux 6.6")
		}
		if err == nil {
			b.T.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return func() (n uint64) {
		if err := stamps.Lookup(uint32(0), &n); err != nil {
			b.T.Fatal(err)
		}
		return n
	}
}
