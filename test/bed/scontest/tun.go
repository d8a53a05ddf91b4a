package scontest

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// OpenTun makes a tun device in a node and opens its end in user space, until the
// end of the test. With offload, packets have a virtio-net header that states
// pending checksums and segmentation.
func (b *Bed) OpenTun(node, name string, offload bool) *os.File {
	b.T.Helper()
	var file *os.File
	err := b.Do(node, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.ENOENT) {
			b.T.Skip("this machine has no /dev/net/tun")
		}
		if err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if offload {
			flags |= unix.IFF_VNET_HDR
		}
		ifr.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
		if err == nil && offload {
			err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6)
		}
		file = os.NewFile(uintptr(fd), name) // NewFile registers it with the poller only now
		return err
	})
	if err != nil {
		b.T.Fatalf("make %s in %s: %v", name, node, err)
	}
	b.T.Cleanup(func() { file.Close() })
	return file
}

// CopyPackets forwards packets until one end is closed. It drops a packet that
// cannot be delivered, as a wire does.
func CopyPackets(to io.Writer, from io.Reader) {
	buf := make([]byte, 1<<16+64)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		_, _ = to.Write(buf[:n])
	}
}
