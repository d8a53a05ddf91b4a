package differential

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// wire is a packet socket at a node's eth0, which sends as the node and receives the
// node's packets.
type wire struct {
	fd    int
	index int // index of the device
	buf   []byte
	// bare is set for the end of a tun device, whose packets begin with the IP header.
	// Frames to send have the MAC header that edge would see.
	bare bool
	ipip bool // the end of an IPIP device's tunnel
}

// offload is a packet's virtio header (struct virtio_net_hdr): the checksum to
// complete and the segments to cut.
type offload struct {
	partial            bool
	gsoType            uint8
	header, gsoSize    uint16
	csumStart, csumOff uint16
}

const (
	offloadLen   = 10
	needsCsum    = 1  // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoTCP4      = 1  // VIRTIO_NET_HDR_GSO_TCPV4
	gsoTCP6      = 4  // VIRTIO_NET_HDR_GSO_TCPV6
	gsoUDP       = 5  // VIRTIO_NET_HDR_GSO_UDP_L4
	auxVLANValid = 16 // TP_STATUS_VLAN_VALID
)

func (o offload) bytes() []byte {
	b := make([]byte, offloadLen)
	if o.partial {
		b[0] = needsCsum
	}
	b[1] = o.gsoType
	for i, v := range []uint16{o.header, o.gsoSize, o.csumStart, o.csumOff} {
		binary.NativeEndian.PutUint16(b[2+2*i:], v)
	}
	return b
}

// captured is a packet that arrived at a node. Packets with equal values are
// indistinguishable to the receiver.
type captured struct {
	to       int    // node
	pkttype  uint8  // PACKET_HOST and the like
	vlan     string // tag in the metadata, "" for none
	outer    string // headers of the tunnel, "" for none
	offloads string // pending offload
	data     string
}

// openWire opens a packet socket at a node's eth0.
func openWire(b *scontest.Bed, node string) (*wire, error) {
	w := &wire{fd: -1, buf: make([]byte, 128<<10)}
	err := b.Do(node, func() error {
		iface, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		w.index = iface.Index
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
		if err != nil {
			return err
		}
		const everything = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: w.index})
	})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket in %s: %w", node, err)
	}
	return w, nil
}

func (w *wire) close() { unix.Close(w.fd) }

// openBare replaces device's uplink by a tun device and opens its other end.
func openBare(b *scontest.Bed) *wire {
	file := b.OpenTun(lab.Device, lab.Uplink, true)
	// Fd has made the file blocking.
	fd := int(file.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		b.T.Fatal(err)
	}
	return &wire{fd: fd, buf: make([]byte, 128<<10), bare: true}
}

// sendBare sends the IP packet in a frame if the frame is for the uplink.
func (w *wire) sendBare(o offload, frame []byte) error {
	if len(frame) <= ethLen || string(frame[:6]) != string(uplinkMAC) {
		return nil
	}
	if typ := string(frame[12:14]); typ != "\x08\x00" && typ != "\x86\xdd" {
		return nil
	}
	if o.partial {
		o.csumStart -= ethLen
	}
	if o.header != 0 {
		o.header -= ethLen
	}
	_, err := unix.Write(w.fd, append(o.bytes(), frame[ethLen:]...))
	// EINVAL: the kernel does not accept the offload or the IP version.
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("send a packet of %d bytes: %w", len(frame)-ethLen, err)
	}
	return nil
}

// receiveBare is receive for a tun device.
func (w *wire) receiveBare() (c captured, ok bool, err error) {
	n, err := unix.Read(w.fd, w.buf)
	if errors.Is(err, unix.EAGAIN) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("receive a packet: %w", err)
	}
	typ := "\x08\x00"
	if w.buf[offloadLen]>>4 == 6 {
		typ = "\x86\xdd"
	}
	c.offloads = normal(w.buf[:offloadLen])
	c.data = string(edgeMAC) + string(uplinkMAC) + typ + string(w.buf[offloadLen:n])
	return c, true, nil
}

// drain appends the packets that have arrived at a node's end.
func (w *wire) drain(node int, got []captured) ([]captured, error) {
	for {
		c, ok, err := w.receive()
		if !ok || err != nil {
			return got, err
		}
		if !isOwn(c) {
			c.to = node
			got = append(got, c)
		}
	}
}

func (w *wire) send(o offload, frame []byte) error {
	if w.bare {
		return w.sendBare(o, frame)
	}
	if w.ipip && entersTunnel(frame) {
		o, frame = encapsulate(o, frame)
	}
	_, err := unix.Write(w.fd, append(o.bytes(), frame...))
	// ENOBUFS: longer than the MTU of the other end. ENOMEM: segments that cannot be cut.
	if err != nil && !errors.Is(err, unix.ENOBUFS) && (!w.ipip || !errors.Is(err, unix.ENOMEM)) {
		return fmt.Errorf("send a frame of %d bytes: %w: %s", len(frame), err, hex.EncodeToString(frame[:min(len(frame), 80)]))
	}
	return nil
}

// receive returns the next packet; ok is false if there is none.
func (w *wire) receive() (c captured, ok bool, err error) {
	if w.bare {
		return w.receiveBare()
	}
	var oob [64]byte
	n, oobn, _, from, err := unix.Recvmsg(w.fd, w.buf, oob[:], unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("receive a frame: %w", err)
	}
	c.offloads = normal(w.buf[:offloadLen])
	c.data = string(w.buf[offloadLen:n])
	c.pkttype = from.(*unix.SockaddrLinklayer).Pkttype
	if w.ipip {
		c.decapsulate()
	}
	aux := oob[:oobn]
	if len(aux) >= unix.CmsgSpace(20) {
		aux = aux[unix.CmsgLen(0):]
		if binary.NativeEndian.Uint32(aux)&auxVLANValid != 0 {
			c.vlan = fmt.Sprintf("%04x:%04x", binary.NativeEndian.Uint16(aux[18:]), binary.NativeEndian.Uint16(aux[16:]))
		}
	}
	return c, true, nil
}

// normal clears bits of an offload that the receiver ignores: whether the checksum is
// verified, and the memory layout.
func normal(head []byte) string {
	head[0] &= needsCsum
	head[2], head[3] = 0, 0
	return string(head)
}

// await waits until a packet can be received.
func (w *wire) await(d time.Duration) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}, int(d.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for a frame: %w", err)
	}
	return nil
}
