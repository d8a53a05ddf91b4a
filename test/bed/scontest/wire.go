package scontest

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
)

// Wire is a packet socket that sends and receives whole frames on a device of a node.
type Wire struct {
	b     *Bed
	fd    int
	Iface net.Interface
}

// OpenWire opens a socket on eth0 of a node until the end of the test.
func (b *Bed) OpenWire(node string) *Wire {
	b.T.Helper()
	return b.OpenDevice(node, "eth0")
}

// OpenDevice opens a socket on any device of a node until the end of the test.
func (b *Bed) OpenDevice(node, dev string) *Wire {
	b.T.Helper()
	w := &Wire{b: b, fd: -1}
	err := b.Do(node, func() error {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		w.Iface = *iface
		const everything = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, everything); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: iface.Index})
	})
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// Send sends a frame.
func (w *Wire) Send(frame []byte) {
	w.b.T.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.Iface.Index}); err != nil {
		w.b.T.Fatal(err)
	}
}

// Packet is a frame that arrived.
type Packet struct {
	Data []byte
	Type uint8 // unix.PACKET_HOST and the like
}

// next returns the next frame, if one has arrived.
func (w *Wire) next(buf []byte) (p Packet, ok bool) {
	n, from, err := unix.Recvfrom(w.fd, buf, unix.MSG_DONTWAIT)
	if err != nil {
		return p, false
	}
	return Packet{buf[:n], from.(*unix.SockaddrLinklayer).Pkttype}, true
}

// Skip discards the frames that have arrived so far.
func (w *Wire) Skip() {
	buf := make([]byte, 64<<10)
	for err := error(nil); err == nil; {
		_, _, err = unix.Recvfrom(w.fd, buf, unix.MSG_DONTWAIT)
	}
}

// Receive returns the next frame that match accepts.
func (w *Wire) Receive(match func(frame []byte) bool) []byte {
	w.b.T.Helper()
	buf := make([]byte, 64<<10)
	for end := time.Now().Add(Patience); time.Now().Before(end); {
		p, ok := w.next(buf)
		if !ok {
			time.Sleep(time.Millisecond)
			continue
		}
		if p.Type != unix.PACKET_OUTGOING && match(p.Data) {
			return p.Data
		}
	}
	w.b.T.Fatal("no matching frame arrived")
	return nil
}

// Arrived returns the frames that have arrived since the last call and that
// match accepts.
func (w *Wire) Arrived(match func(frame []byte) bool) (all []Packet) {
	buf := make([]byte, 64<<10)
	for p, ok := w.next(buf); ok; p, ok = w.next(buf) {
		if p.Type != unix.PACKET_OUTGOING && match(p.Data) {
			p.Data = bytes.Clone(p.Data)
			all = append(all, p)
		}
	}
	return all
}

// BridgeMAC returns the bridge's MAC address, the next hop of containers' outgoing
// packets.
func (b *Bed) BridgeMAC() (mac net.HardwareAddr) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(lab.Bridge)
		if err == nil {
			mac = iface.HardwareAddr
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return mac
}

// Offsets in a frame.
const (
	IPAt  = 14
	UDPAt = IPAt + 20
)

// Frame returns an Ethernet frame with a UDP packet without a checksum.
func Frame(to, from net.HardwareAddr, src, dst netip.AddrPort, payload string) []byte {
	f := make([]byte, UDPAt+8, UDPAt+8+len(payload))
	copy(f, to)
	copy(f[6:], from)
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	ip := f[IPAt:UDPAt]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], src.Addr().AsSlice())
	copy(ip[16:], dst.Addr().AsSlice())
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	binary.BigEndian.PutUint16(f[UDPAt:], src.Port())
	binary.BigEndian.PutUint16(f[UDPAt+2:], dst.Port())
	binary.BigEndian.PutUint16(f[UDPAt+4:], uint16(8+len(payload)))
	return append(f, payload...)
}
