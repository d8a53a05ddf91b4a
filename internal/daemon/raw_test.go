package daemon_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/lab"
)

// wire is a socket that sends and receives whole frames on eth0 of a node.
type wire struct {
	b     *bed
	fd    int
	iface net.Interface
}

func (b *bed) openWire(node string) *wire {
	b.t.Helper()
	w := &wire{b: b, fd: -1}
	err := b.Do(node, func() error {
		iface, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		w.iface = *iface
		const everything = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, everything); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: iface.Index})
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func (w *wire) send(frame []byte) {
	w.b.t.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.iface.Index}); err != nil {
		w.b.t.Fatal(err)
	}
}

// receive returns the next frame that match accepts.
func (w *wire) receive(match func(frame []byte) bool) []byte {
	w.b.t.Helper()
	buf := make([]byte, 64<<10)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		n, from, err := unix.Recvfrom(w.fd, buf, unix.MSG_DONTWAIT)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && match(buf[:n]) {
			return buf[:n]
		}
	}
	w.b.t.Fatal("no such frame arrives")
	return nil
}

// bridgeMAC is where containers send what is for outside.
func (b *bed) bridgeMAC() (mac net.HardwareAddr) {
	b.t.Helper()
	err := b.Do(lab.Device, func() error {
		iface, err := net.InterfaceByName(lab.Bridge)
		if err == nil {
			mac = iface.HardwareAddr
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return mac
}

// Places in a frame.
const (
	ipAt  = 14
	udpAt = ipAt + 20
)

// frame is a UDP packet without a checksum.
func frame(to, from net.HardwareAddr, src, dst netip.AddrPort, payload string) []byte {
	f := make([]byte, udpAt+8, udpAt+8+len(payload))
	copy(f, to)
	copy(f[6:], from)
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	ip := f[ipAt:udpAt]
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
	binary.BigEndian.PutUint16(f[udpAt:], src.Port())
	binary.BigEndian.PutUint16(f[udpAt+2:], dst.Port())
	binary.BigEndian.PutUint16(f[udpAt+4:], uint16(8+len(payload)))
	return append(f, payload...)
}
