package scontest

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is struct mmsghdr.
type message struct {
	unix.Msghdr
	sent uint32
}

// SendAll sends frames with as few system calls as possible.
func (w *Wire) SendAll(frames [][]byte) {
	w.b.T.Helper()
	messages, buffers := make([]message, len(frames)), make([]unix.Iovec, len(frames))
	for i, f := range frames {
		buffers[i].Base = &f[0]
		buffers[i].SetLen(len(f))
		messages[i].Iov = &buffers[i]
		messages[i].SetIovlen(1)
	}
	for len(messages) > 0 {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(w.fd),
			uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)), 0, 0, 0)
		if errors.Is(errno, unix.EINTR) || errors.Is(errno, unix.ENOBUFS) {
			continue
		}
		if errno != 0 {
			w.b.T.Fatal(os.NewSyscallError("sendmmsg", errno))
		}
		messages = messages[n:]
	}
}
