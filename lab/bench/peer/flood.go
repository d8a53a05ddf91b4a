package peer

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// Flood counts frames of Pattern Storm as Lockstep counts messages. On a single CPU the
// bridge has sent a frame to all of its ports when its send returns. It is an error if
// fewer than were sent arrive in the receiver's namespace.
func Flood(receiverNetns, senderNetns string, spec Spec) (report Report, err error) {
	arrived := func() (n uint64) {
		if err == nil {
			err = netns.Do(receiverNetns, func() error {
				l, err := deviceOf(spec)
				if err == nil {
					n = l.Attrs().Statistics.RxPackets
				}
				return err
			})
		}
		return n
	}
	before := arrived()
	if err == nil {
		err = netns.Do(senderNetns, func() error {
			report, err = flood(spec)
			return err
		})
	}
	if n := arrived() - before; err == nil && n < report.Total {
		err = fmt.Errorf("%d of %d frames arrived", n, report.Total)
	}
	return report, err
}

// deviceOf returns this namespace's device in the network of the spec's address.
func deviceOf(spec Spec) (netlink.Link, error) {
	addrs, err := netlink.AddrList(nil, unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if a.Contains(spec.Address.Addr().AsSlice()) {
			return netlink.LinkByIndex(a.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no device in the network of %v", spec.Address.Addr())
}

// flood sends from this namespace.
func flood(spec Spec) (Report, error) {
	l, err := deviceOf(spec)
	if err != nil {
		return Report{}, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Report{}, fmt.Errorf("open a packet socket: %w", err)
	}
	s := socket(fd)
	defer s.close()
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}); err != nil {
		return Report{}, fmt.Errorf("bind to %s: %w", l.Attrs().Name, err)
	}
	frames := strange(spec, l.Attrs().HardwareAddr)
	return count(spec, func() error {
		frame := frames[0]
		frames = frames[1:]
		return s.send(frame)
	})
}

// strange returns as many frames as count sends: UDP without checksums from a machine's MAC
// address, each to another pair of addresses.
func strange(spec Spec, from net.HardwareAddr) (frames [][]byte) {
	const ipAt, udpAt, header = 14, 34, 42
	network := spec.Address.Addr().As4()
	for i := range spec.WarmUp + settling + spec.Count + batches {
		f := make([]byte, header+spec.Size)
		copy(f, []byte{2, 0xde, 0xad, 0, byte(i >> 8), byte(i)})
		copy(f[6:], from)
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
		ip := f[ipAt:udpAt]
		ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(ip[2:], uint16(header-ipAt+spec.Size))
		copy(ip[12:], []byte{network[0], network[1], 0x3f, 1})
		copy(ip[16:], []byte{network[0], network[1], 0x40 + byte(i>>8), byte(i)})
		binary.BigEndian.PutUint16(ip[10:], sumOf(ip))
		binary.BigEndian.PutUint16(f[udpAt:], 7)
		binary.BigEndian.PutUint16(f[udpAt+2:], 9)
		binary.BigEndian.PutUint16(f[udpAt+4:], uint16(header-udpAt+spec.Size))
		frames = append(frames, f)
	}
	return frames
}

// sumOf returns the checksum of an IP header.
func sumOf(ip []byte) uint16 {
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}
