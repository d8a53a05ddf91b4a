package pipe

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// A process can pass files whose last close blocks as long as it wants: a TCP socket with
// SO_LINGER and unsent bytes, until its peer has acknowledged them; a file of FUSE, until its
// server answers. It can set the option at any time, so a look at it before is no protection, and
// the broker does not change the option, which other holders of the socket share.
//
// The broker meets such files in requests, and unread in the sockets of sessions, and before Linux
// 6.16 in those of doorbells and backlogs (engine.Doorbells), to which a process can send: their
// close closes what is unread, and so does a read with too little room for control data.
// Everything that can be the last close of such a file goes through closeLater or, where files
// are received, through the same gate. A container whose closes hang passes no more files, and
// opens no sessions, until some have ended.

// mostHung bounds the closes of a container that hang: with as many, it passes no more files.
const mostHung = 64

// errHung is why a container with mostHung closes that hang is refused.
var errHung = fmt.Errorf("%d closes of files that the container has passed hang; it may pass more once they have ended: %w", mostHung, unix.EBUSY)

// hung counts, by container, the closes that have taken longer than callPatience, since they hang
// or wait behind others that do.
type hung struct {
	mu sync.Mutex
	of map[quota.Account]int
}

// change adds n, and reports whether the container then has mostHung.
func (h *hung) change(o quota.Owner, n int) (most bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := o.Account()
	if h.of[a] += n; h.of[a] == 0 {
		delete(h.of, a)
	}
	return h.of[a] == mostHung
}

// has returns errHung if the container has mostHung.
func (h *hung) has(o quota.Owner) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of[o.Account()] >= mostHung {
		return errHung
	}
	return nil
}

// closeLater closes a file that a process has passed, or a socket to which a process can send
// files. Of these closes mostCloses are in progress at a time, each container within its share; the
// others wait. A file is charged to the container until it
// is closed. late is called if the close takes too long. The result is closed after the file.
func (b *Broker) closeLater(o quota.Owner, late func(), closeFile func() error) <-chan struct{} {
	done := make(chan struct{})
	b.ledger.Force(o, quota.Files, 1)
	hangs := make(chan struct{})
	timer := time.AfterFunc(callPatience, func() {
		defer close(hangs)
		b.hangs(o)
		late()
	})
	b.closes.Start(o, func() {
		go func() {
			_ = closeFile()
			if !timer.Stop() {
				<-hangs
				b.hung.change(o, -1)
			}
			b.ledger.Give(o, quota.Files, 1)
			b.closes.Leave(o)
			close(done)
		}()
	})
	return done
}

// hangs counts a close that hangs.
func (b *Broker) hangs(o quota.Owner) {
	b.refuse("close hangs")
	if b.hung.change(o, 1) {
		b.log.Warn("pipe: closes of files that a container has passed hang; it passes no more and opens no sessions until some have ended", "cgroup", o.Cgroup, "closes", mostHung)
	}
}

// closeSession closes a session's socket, at once unless there are files in it that nobody has
// read. Nobody can send more before the close.
func (b *Broker) closeSession(o quota.Owner, conn *net.UnixConn) {
	if isClean(conn) {
		conn.Close()
		return
	}
	b.closeLater(o, func() {}, conn.Close)
}

// isClean shuts a session's socket down, reads what is unread, and reports whether there were no
// files. With SO_PASSCRED the sender's identity comes with each packet, also with one of no bytes,
// but not with the end of the stream (net/unix/af_unix.c, unix_dgram_recvmsg). There is room for
// it alone, and it comes before the files (net/core/scm.c, scm_recv).
func isClean(conn *net.UnixConn) (clean bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		if unix.Shutdown(int(fd), unix.SHUT_RDWR) != nil || unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) != nil {
			return
		}
		buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
		for {
			// A peek closes copies only.
			_, oobn, flags, _, err := unix.Recvmsg(int(fd), buf, oob, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil || flags&unix.MSG_CTRUNC != 0:
				return
			case oobn == 0:
				clean = true // the end
				return
			}
			_, _ = unix.Read(int(fd), buf)
		}
	})
	return clean && err == nil
}

// closeLater closes a file of the session. If that hangs, the session ends.
func (s *session) closeLater(closeFile func() error) <-chan struct{} {
	return s.b.closeLater(s.owner, s.hangUp, closeFile)
}

// closeFD does so for a descriptor.
func (s *session) closeFD(fd int) { s.closeLater(func() error { return unix.Close(fd) }) }

// closeAlert closes the broker's end of an alert. No process has that end, so where the kernel can
// refuse files, there are none in it.
func (s *session) closeAlert(fd int) {
	if engine.RefusesFiles() {
		unix.Close(fd)
		return
	}
	s.closeFD(fd)
}

// hangUp ends the session.
func (s *session) hangUp() {
	if raw, err := s.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

// closeInTime does so, and waits for it. An error is that it hangs: the session is to end.
func (s *session) closeInTime(closeFile func() error) error {
	select {
	case <-s.closeLater(closeFile):
		return nil
	case <-time.After(callPatience):
		return fmt.Errorf("close a file of a request or a reply: %w", unix.ETIMEDOUT)
	}
}

// receive waits for a packet, and returns its length and its file; -1: it has not exactly one.
// A packet with one file is received here: the peek gets a copy of the file, so the packet has not
// the last one when it goes. Those with more are received by the gate: the kernel closes files for
// which the control data has no room.
func (s *session) receive(buf []byte) (n, file int, err error) {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return 0, -1, err
	}
	var oob [unix.SizeofCmsghdr + 8]byte // CMSG_SPACE of a file
	oobn, flags := 0, 0
	if closed := raw.Read(func(fd uintptr) bool {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			// Room for one: what has none is closed in a copy.
			_, oobn, flags, _, err = unix.Recvmsg(int(fd), buf, oob[:unix.CmsgLen(4)], unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if err == nil && oobn == 0 && flags&unix.MSG_CTRUNC == 0 {
				n, err = unix.Read(int(fd), buf)
			}
		}
		return !errors.Is(err, unix.EAGAIN)
	}); closed != nil {
		return 0, -1, closed
	}
	if err != nil || oobn == 0 && flags&unix.MSG_CTRUNC == 0 {
		return n, -1, err
	}
	clear(oob[oobn:])
	file = received(oob[:])
	if err = s.b.hung.has(s.owner); err == nil && file >= 0 && flags&unix.MSG_CTRUNC == 0 {
		if closed := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }); closed != nil {
			err = closed
		}
		return n, file, err
	}
	if file >= 0 { // the packet has it, too
		unix.Close(file)
	}
	if err != nil {
		return 0, -1, err
	}
	return s.receiveFiles(buf)
}

// receiveFiles receives a packet with more than one file.
func (s *session) receiveFiles(buf []byte) (n, file int, err error) {
	deadline := time.Now().Add(callPatience)
	if !s.b.calls.Enter(s.owner, deadline) {
		return 0, -1, errHeld
	}
	type packet struct {
		n, file int
		err     error
	}
	received := make(chan packet, 1)
	go func() {
		defer s.b.calls.Leave(s.owner)
		var p packet
		p.n, p.file, p.err = s.receiveNow(buf)
		received <- p
	}()
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case p := <-received:
		return p.n, p.file, p.err
	case <-late.C:
	}
	s.b.hangs(s.owner)
	go func() {
		p := <-received
		s.b.hung.change(s.owner, -1)
		if p.file >= 0 {
			s.closeFD(p.file)
		}
	}()
	return 0, -1, errHeld
}

// receiveNow receives a packet that is there.
func (s *session) receiveNow(buf []byte) (n, file int, err error) {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return 0, -1, err
	}
	oob, oobn := make([]byte, unix.CmsgSpace(4)), 0
	if closed := raw.Control(func(fd uintptr) {
		n, oobn, _, _, err = unix.Recvmsg(int(fd), buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	}); closed != nil {
		return 0, -1, closed
	}
	if err != nil {
		return 0, -1, fmt.Errorf("receive a request: %w", os.NewSyscallError("recvmsg", err))
	}
	return n, received(oob[:oobn]), nil
}

// received returns the file of a packet, or -1 if there is not exactly one.
func received(oob []byte) int {
	var all []int
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			all = append(all, fds...)
		}
	}
	if len(all) != 1 {
		closeAll(all)
		return -1
	}
	return all[0]
}
