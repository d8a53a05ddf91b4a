package pipe

import (
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/bpf"
	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// session is the connection of one process to the broker.
type session struct {
	b      *Broker
	conn   *net.UnixConn
	party  Party
	cookie uint64 // the kernel's, of the process's network namespace
	owner  quota.Owner
	limit  float64 // processors that the owner may use; 0: no limit
	pidfd  *os.File
	calls  chan struct{} // semaphore of guard: holds a value while a call on a shared socket runs

	// Guarded by the broker's lock. Handles are valid in this session only.
	names map[uint32]*name
	ends  map[uint32]*end
	over  bool // the process has ended

	attachments map[uint32]*attachment

	pool     *bpf.Pool     // of rings; nil: none
	attaches bool          // it has, or had, attached connections that may receive from the pool
	pooling  chan struct{} // closed once it was made, or could not be; nil: not begun

	poolBytes, poolFiles int64 // charged for it beside its ends' rings
}

// Party is a process at one end of a connection.
type Party struct {
	PID     int
	Command string
	Netns   uint64 // inode of its network namespace
}

const (
	// mostHandles bounds the open handles of one process.
	mostHandles = 16384
	// helloTimeout limits the wait for the hello of a process that is rejected.
	helloTimeout = 100 * time.Millisecond
	// mostRejecting bounds the rejections in progress.
	mostRejecting = 64
	// writeTimeout limits how long a client may leave its reply unread.
	writeTimeout = time.Second
)

// handle serves a process until it ends.
func (b *Broker) handle(conn *net.UnixConn) {
	s, err := b.register(conn)
	if err != nil {
		b.log.Debug("pipe: accept a process", "error", err)
		b.reject(conn, err)
		b.closeSession(s.owner, conn)
		return
	}
	defer b.closeSession(s.owner, conn)
	defer s.end()
	b.running.Go(s.watch)
	if err := s.answer(); err != nil {
		b.log.Debug("pipe: disconnect a process", "pid", s.party.PID, "error", err)
	}
}

// reject replies to a process's hello with the errno of why it cannot connect. If too many
// rejections are in progress, the process gets ECONNRESET.
func (b *Broker) reject(conn *net.UnixConn, err error) {
	select {
	case b.rejecting <- struct{}{}:
		defer func() { <-b.rejecting }()
	default:
		return
	}
	if conn.SetDeadline(time.Now().Add(helloTimeout)) != nil {
		return
	}
	if n, readErr := conn.Read(make([]byte, messageSize)); n > 0 && readErr == nil {
		_, _ = conn.Write(reply{Errno: errnoOf(err)}.encode())
	}
}

// register identifies the process and adds its session. On an error, only the owner of the
// result is of use, as far as it is known.
func (b *Broker) register(conn *net.UnixConn) (_ *session, err error) {
	s := &session{b: b, conn: conn, calls: make(chan struct{}, 1), names: make(map[uint32]*name), ends: make(map[uint32]*end),
		attachments: make(map[uint32]*attachment)}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if err := s.identify(); err != nil {
		return s, err
	}
	if err := b.hung.has(s.owner); err != nil {
		b.refuse("close hangs")
		return s, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = passFiles(raw, true)
	}
	if err != nil {
		return s, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil { // Close has ended the sessions that there were
		return s, unix.ECONNABORTED
	}
	if err := b.takeBoth(s.owner, quota.Processes, 1, filesOfProcess); err != nil {
		return s, err
	}
	b.sessions[s] = true
	return s, nil
}

// identify reads the process's number, name and network namespace. An accepted socket
// belongs to the namespace of the connecting one, so the broker needs no rights over the
// process.
func (s *session) identify() error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	pidfd := -1
	if ctlErr := raw.Control(func(fd uintptr) {
		if s.cookie, s.party.Netns, err = netnsOf(int(fd)); err != nil {
			return
		}
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pidfd, err = peerPidfd(int(fd), int(cred.Pid))
		}
	}); ctlErr != nil {
		return ctlErr
	}
	if err != nil {
		return fmt.Errorf("identify a process: %w", err)
	}
	s.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	s.party.PID = int(cred.Pid)
	command, err := os.ReadFile("/proc/" + strconv.Itoa(int(cred.Pid)) + "/comm")
	if err != nil {
		return fmt.Errorf("read a process's name: %w", err)
	}
	s.party.Command = strings.TrimSpace(string(command))
	s.owner = quota.Owner{Netns: s.cookie, Cgroup: quota.CgroupOf(int(cred.Pid))}
	s.limit = quota.Processors(s.owner.Cgroup)
	// The process still exists, so its number was not reused while it was read.
	if hasEnded(pidfd) {
		return fmt.Errorf("identify process %d: %w", cred.Pid, unix.ESRCH)
	}
	return nil
}

// netnsOf returns the cookie and the inode of a socket's network namespace.
func netnsOf(fd int) (cookie, inode uint64, err error) {
	if cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return 0, 0, fmt.Errorf("read a socket's network namespace: %w", err)
	}
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return 0, 0, fmt.Errorf("open a socket's network namespace: %w", err)
	}
	defer unix.Close(ns)
	var st unix.Stat_t
	if err := unix.Fstat(ns, &st); err != nil {
		return 0, 0, fmt.Errorf("stat a network namespace: %w", err)
	}
	return cookie, st.Ino, nil
}

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// peerPidfd opens the process at the other end of a UNIX socket. Linux 6.5 and newer
// return it by SO_PEERPIDFD. Older kernels open it by number; the caller must check for
// reuse.
func peerPidfd(fd, pid int) (int, error) {
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

// watch ends the session when its process dies, even if a child still holds the socket
// or a request is in progress.
func (s *session) watch() {
	defer func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }()
	defer s.hangUp()
	defer s.leave()
	raw, err := s.pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool { return hasEnded(int(fd)) })
}

// answer reads requests and replies to them. An error disconnects the client.
func (s *session) answer() error {
	buf := make([]byte, messageSize+1)
	greeted := false
	for {
		n, file, err := s.receive(buf)
		if err == nil && n > 0 {
			err = s.reply(buf[:n], file, &greeted)
		}
		if file >= 0 {
			// Before the next request: a session has one such file at a time.
			err = errors.Join(err, s.closeInTime(func() error { return unix.Close(file) }))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || err == nil && n == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("answer a request: %w", err)
		}
	}
}

// reply executes a request and sends the result.
func (s *session) reply(packet []byte, file int, greeted *bool) error {
	r, err := parseRequest(packet)
	if err != nil {
		return err
	}
	if *greeted == (r.Op == opHello) {
		return fmt.Errorf("%w: hello must be the first request and only the first", errMessage)
	}
	*greeted = true
	r.file = file
	return s.send(s.do(r))
}

func (s *session) send(r reply) error {
	var oob []byte
	if len(r.files) > 0 {
		oob = unix.UnixRights(r.files...)
	}
	err := s.write(r.encode(), oob)
	if err != nil {
		err = fmt.Errorf("send a reply: %w", err)
	}
	if r.taken != nil {
		err = errors.Join(err, r.taken())
	}
	return err
}

// write sends a packet, for which there is room unless the process leaves replies unread.
func (s *session) write(packet, oob []byte) error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	if closed := raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), packet, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}); closed != nil {
		return closed
	}
	if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		return err
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, _, err = s.conn.WriteMsgUnix(packet, oob, nil)
	return err
}

// do executes a request. It replies to an error with its errno.
func (s *session) do(r request) reply {
	var answer reply
	var err error
	switch r.Op {
	case opHello:
		if r.Arg != Version {
			s.b.refuse("version")
			err = fmt.Errorf("the library uses version %d of the protocol, the broker version %d: %w", r.Arg, Version, unix.EPROTONOSUPPORT)
			break
		}
		answer, err = s.netnsFile()
	case opBind:
		answer, err = s.bind(r)
	case opListen:
		answer, err = s.listen(r)
	case opAccept:
		answer, err = s.accept(r)
	case opConnect:
		answer, err = s.connect(r)
	case opMapped:
		err = s.onEnd(r, func(e *end) error { return e.Memory.Mapped(r.Arg) })
	case opRing:
		err = s.onEnd(r, func(e *end) error {
			var ringErr error
			answer.files, answer.Size, ringErr = e.Memory.Ring(r.Arg)
			answer.Generation = r.Arg
			if err := s.keep(&answer, ringErr); err != nil {
				return err
			}
			e.Memory.Given(r.Arg)
			return nil
		})
	case opGrow:
		err = s.onEnd(r, func(e *end) error {
			var growErr error
			answer, growErr = e.grow(r.Size)
			return s.keep(&answer, growErr)
		})
	case opWake:
		err = s.wake(r.ID)
	case opEnded:
		err = s.onEnd(r, func(e *end) error {
			if e.connection.died {
				return unix.ECONNRESET
			}
			return nil
		})
	case opLend:
		err = s.onLender(r, func(m engine.Lender) (err error) {
			answer.Generation, err = m.Lend(r.file)
			return err
		})
	case opTakeBack:
		err = s.onLender(r, func(m engine.Lender) error { return m.TakeBack(r.Arg) })
	case opAttach:
		answer, err = s.attach(r.file, r.Arg == mayPool)
	case opAttached:
		answer, err = s.attached(r)
	case opToken:
		err = s.token(r.ID)
	case opArrived:
		err = s.arrived(r)
	case opProven:
		answer, err = s.proven(r.ID)
	case opDetach:
		err = s.b.detach(r.file)
	case opChunk:
		answer, err = s.chunk(r.Arg)
	case opMoreRings:
		err = s.moreRings(r.ID)
	case opLeaveRings:
		err = s.leaveRings()
	case opClose:
		err = s.close(r)
	}
	if err != nil {
		s.b.log.Debug("pipe: refuse", "pid", s.party.PID, "op", r.Op, "error", err)
		return reply{Errno: errnoOf(err)}
	}
	return answer
}

// keep duplicates the files of a reply, so that it can be sent without the lock that
// guards them.
func (s *session) keep(r *reply, err error) error {
	if err != nil {
		return err
	}
	var own []int
	for _, fd := range r.files {
		if fd < 0 { // it could not be opened
			closeAll(own)
			return unix.EMFILE
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(own)
			return err
		}
		own = append(own, dup)
	}
	r.files = own
	r.taken = func() error {
		closeAll(own)
		return nil
	}
	if r.Engine != BPF { // else memory, and doorbells that pass no files
		// One may be a doorbell whose connection has ended. Before the next request: a session
		// has the files of one reply at a time.
		closeOwn := r.taken
		r.taken = func() error { return s.closeInTime(closeOwn) }
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// errnoOf returns the errno that the client gets for an error.
func errnoOf(err error) uint32 {
	var errno unix.Errno
	if errors.As(err, &errno) && errno != 0 {
		return uint32(errno)
	}
	return uint32(unix.EIO)
}

// onEnd calls fn for the end that a request names, with the lock held.
func (s *session) onEnd(r request, fn func(*end) error) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	e := s.ends[r.ID]
	if e == nil {
		return unix.EBADF
	}
	err := fn(e)
	e.connection.recountBoth()
	return err
}

// wake signals a doorbell of this session.
func (s *session) wake(id uint32) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if e := s.ends[id]; e != nil {
		e.Memory.Wake()
		return nil
	}
	if n := s.names[id]; n != nil && n.ready != nil {
		n.signal()
		return nil
	}
	return unix.EBADF
}

// onLender is onEnd for an end that lends buffers.
func (s *session) onLender(r request, fn func(engine.Lender) error) error {
	return s.onEnd(r, func(e *end) error {
		m, ok := e.Memory.(engine.Lender)
		if !ok {
			return unix.EINVAL
		}
		return fn(m)
	})
}

// newID returns a free handle of the session, chosen at random: a number tells nothing of
// other sessions. The lock is held.
func (s *session) newID() (uint32, error) {
	if s.over {
		return 0, unix.ECONNABORTED
	}
	if len(s.names)+len(s.ends)+len(s.attachments) >= mostHandles {
		return 0, unix.EMFILE
	}
	for {
		id := mathrand.Uint32()
		if id != 0 && s.names[id] == nil && s.ends[id] == nil && s.attachments[id] == nil {
			return id, nil
		}
	}
}

func (s *session) close(r request) error {
	n, err := s.closeHandle(r)
	if n != nil {
		n.awaitFree()
	}
	return err
}

// closeHandle closes a handle. It returns the name if the handle is one.
func (s *session) closeHandle(r request) (*name, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	id := r.ID
	if e := s.ends[id]; e != nil {
		e.sentUnix, e.messages = r.Size, r.Arg
		delete(s.ends, id)
		e.connection.leave(e)
		return nil, nil
	}
	if a := s.attachments[id]; a != nil {
		s.drop(a)
		return nil, nil
	}
	if n := s.names[id]; n != nil {
		delete(s.names, id)
		n.remove()
		return n, nil
	}
	return nil, unix.EBADF
}

// leave releases all handles of the process.
func (s *session) leave() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.over = true
	// Notify all peers before the slower release.
	for _, e := range s.ends {
		e.connection.abort()
	}
	for _, e := range s.ends {
		if s.b.connections[e.connection] { // not yet released through its other end
			e.connection.settle()
		}
	}
	for _, a := range s.attachments {
		s.drop(a)
	}
	for _, n := range s.names {
		n.remove()
	}
	clear(s.ends)
	clear(s.names)
}

// end removes the session.
func (s *session) end() {
	s.leave()
	s.b.mu.Lock()
	delete(s.b.sessions, s)
	s.dropRings()
	s.b.ledger.Give(s.owner, quota.Processes, 1)
	s.b.ledger.Give(s.owner, quota.Files, filesOfProcess)
	s.b.mu.Unlock()
	s.release()
}

// release closes the pidfd, which ends watch.
func (s *session) release() {
	if s.pidfd != nil {
		s.pidfd.Close()
	}
}
