package express_test

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Requests of /dev/ppp (linux/ppp-ioctl.h), which all take an int.
const (
	pppGetChannel    = 0x80047437 // PPPIOCGCHAN
	pppAttachChannel = 0x40047438 // PPPIOCATTCHAN
	pppNewUnit       = 0xc004743e // PPPIOCNEWUNIT
	pppConnect       = 0x4004743a // PPPIOCCONNECT
)

// pppoe has a session of PPPoE over eth0, without the negotiation before it.
func pppoe(b *scontest.Bed) {
	b.T.Helper()
	for _, end := range []struct{ here, there string }{{lab.Device, lab.Edge}, {lab.Edge, lab.Device}} {
		peer := linkOf(b, end.there, "eth0").Attrs().HardwareAddr
		var unit int
		err := b.Do(end.here, func() (err error) {
			unit, err = openSession(b, &unix.SockaddrPPPoE{SID: 7, Remote: peer, Dev: "eth0"})
			return err
		})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) {
			b.T.Skipf("this kernel has no PPPoE: %v", err)
		}
		if err != nil {
			b.T.Fatalf("opening a session in %s: %v", end.here, err)
		}
		b.Sh(end.here, fmt.Sprintf("ip link set ppp%d name up0", unit))
	}
}

// openSession makes a PPP device of the calling thread's namespace over a
// session, until the end of the test.
func openSession(b *scontest.Bed, session unix.Sockaddr) (unit int, err error) {
	open := func(fd int, err error) (int, error) {
		if err == nil {
			b.T.Cleanup(func() { unix.Close(fd) })
		}
		return fd, err
	}
	socket, err := open(unix.Socket(unix.AF_PPPOX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	if err != nil {
		return 0, err
	}
	if err := unix.Connect(socket, session); err != nil {
		return 0, err
	}
	channel, err := open(unix.Open("/dev/ppp", unix.O_RDWR|unix.O_CLOEXEC, 0))
	if err != nil {
		return 0, err
	}
	device, err := open(unix.Open("/dev/ppp", unix.O_RDWR|unix.O_CLOEXEC, 0))
	if err != nil {
		return 0, err
	}
	var number int32
	created := int32(-1)
	for _, step := range []struct {
		fd      int
		request uintptr
		value   *int32
	}{
		{socket, pppGetChannel, &number}, {channel, pppAttachChannel, &number},
		{device, pppNewUnit, &created}, {channel, pppConnect, &created},
	} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(step.fd), step.request, uintptr(unsafe.Pointer(step.value))); errno != 0 {
			return 0, fmt.Errorf("request %#x: %w", step.request, errno)
		}
	}
	return int(created), nil
}
