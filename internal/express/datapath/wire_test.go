package datapath_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Frames that only a device can give to a program: with a tag beside the
// packet, as the receiving side takes it off, and too short for prog.Run.
func TestFramesOfADevice(t *testing.T) {
	b := newBed(t)
	nstest.Do(t, b.ns, func() {
		if err := b.Attach(datapath.FromContainer, b.port); err != nil {
			t.Fatal(err)
		}
	})
	inside := openDevice(t, b.ns, "inside")
	f := masqueraded(udp)
	b.express(f)
	for _, c := range []struct {
		name, reason string
		damage       func([]byte) []byte
	}{
		{"VLAN tag", "vlan_tag", func(b []byte) []byte { return slices.Insert(b, 12, 0x81, 0, 0, 5) }},
		{"cut in the IP header", "malformed", cut(ethLen + ipLen - 1)},
		{"cut behind the IP header", "malformed", cut(ethLen + ipLen)},
	} {
		before := b.counters(b.port)
		inside.send(c.damage(f.out.enter.bytes()))
		b.await(func() bool { return b.counters(b.port).Reasons[c.reason] > before.Reasons[c.reason] },
			c.name+": no packet was counted as "+c.reason)
	}
}

// await waits until something is so, and fails if it never is.
func (b *bed) await(is func() bool, or string) {
	b.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatal(or)
		}
	}
}

// device is the other end of one of the bed's pairs, for frames.
type device struct {
	t  *testing.T
	fd int
}

func openDevice(t *testing.T, ns, name string) device {
	t.Helper()
	index := indexOf(t, ns, name)
	d := device{t: t}
	nstest.Do(t, ns, func() {
		proto := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto))
		if err != nil {
			t.Fatalf("opening a packet socket: %v", err)
		}
		d.fd = fd
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: index}); err != nil {
			t.Fatalf("binding a packet socket: %v", err)
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { unix.Close(d.fd) })
	return d
}

func (d device) send(frame []byte) {
	d.t.Helper()
	if _, err := unix.Write(d.fd, frame); err != nil {
		d.t.Fatalf("sending a frame: %v", err)
	}
}

// receive returns the next frame that arrives.
func (d device) receive() []byte {
	d.t.Helper()
	buf := make([]byte, 2048)
	n, _, err := unix.Recvfrom(d.fd, buf, 0)
	if err != nil {
		d.t.Fatalf("receiving a frame: %v", err)
	}
	return buf[:n]
}
