package topology

import (
	"encoding/binary"
	"errors"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// receiveTTL enables IP_RECVTTL on a socket.
func receiveTTL(raw syscall.RawConn) error {
	var err error
	control := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
	})
	return errors.Join(control, err)
}

func parseTTL(control []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if m.Header.Type == unix.IP_TTL {
			return int(binary.NativeEndian.Uint32(m.Data)), nil
		}
	}
	return 0, errors.New("no TTL in the control message")
}

// inThread calls fn on a thread that ends afterwards.
func inThread(fn func() (string, error)) (out string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		out, err = fn()
	}()
	<-done
	return out, err
}
