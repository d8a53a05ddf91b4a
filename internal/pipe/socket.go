package pipe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// Modes of the containers' socket and its directory: any process with the mount may
// connect, only the owner may replace the socket.
const (
	socketMode = 0o666
	dirMode    = 0o755
)

// nameInterval is how often the broker looks whether the socket's name is its own. A
// container that has the directory writable can rename the socket, and bind its own.
const nameInterval = time.Second

// containersSocket is the broker's listening socket and its name.
type containersSocket struct {
	*net.UnixListener
	path string
	file os.FileInfo // of the name, when it was made
}

// listen makes the socket, unless another broker answers there.
func listen(path string) (*containersSocket, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if conn, err := net.Dial("unixpacket", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another broker answers there", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("listen on %s: it exists and is no socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the stale socket %s: %w", path, err)
	}
	return bind(path)
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := os.Chmod(dir, dirMode); err != nil { // regardless of the umask
		return fmt.Errorf("set mode of %s: %w", dir, err)
	}
	return nil
}

// bind makes the socket at a free name.
func bind(path string) (_ *containersSocket, err error) {
	refusing := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { return passFiles(raw, false) }}
	any, err := refusing.Listen(context.Background(), "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l := any.(*net.UnixListener)
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	l.SetUnlinkOnClose(false) // the name may be another socket's then
	file, err := fileOf(l)
	if err != nil {
		return nil, fmt.Errorf("open the file of socket %s: %w", path, err)
	}
	defer file.Close()
	// Not by the name, which a container may have given to another file since.
	if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), socketMode); err != nil {
		return nil, fmt.Errorf("set mode of socket %s: %w", path, err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at socket %s: %w", path, err)
	}
	return &containersSocket{l, path, info}, nil
}

// passFiles sets whether processes may send files to a socket, where the kernel can refuse that:
// Linux 6.16 (SO_PASSRIGHTS, net/core/sock.c). Accepted sockets inherit it from their listener.
func passFiles(raw syscall.RawConn, pass bool) (err error) {
	value := 0
	if pass {
		value = 1
	}
	if closed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value) }); closed != nil {
		return closed
	}
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return fmt.Errorf("set whether a socket passes files: %w", err)
	}
	return nil
}

// fileOf opens the file that a socket was bound to, wherever that is now, with O_PATH.
func fileOf(l *net.UnixListener) (*os.File, error) {
	const siocunixfile = 0x89e0 // SIOCUNIXFILE
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd uintptr
	var errno syscall.Errno
	if err := raw.Control(func(s uintptr) { fd, _, errno = unix.Syscall(unix.SYS_IOCTL, s, siocunixfile, 0) }); err != nil {
		return nil, err
	}
	if errno != 0 {
		return nil, os.NewSyscallError("SIOCUNIXFILE", errno)
	}
	return os.NewFile(fd, l.Addr().String()), nil
}

// lost returns why the name does not lead to this socket, or others could replace it; nil:
// it is as it was made.
func (s *containersSocket) lost() error {
	info, err := os.Lstat(s.path)
	if err != nil {
		return err
	}
	if !os.SameFile(info, s.file) {
		return fmt.Errorf("%s is another file", s.path)
	}
	if info.Mode().Perm() != socketMode {
		return fmt.Errorf("%s has mode %v", s.path, info.Mode())
	}
	dir, err := os.Lstat(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	if dir.Mode().Perm() != dirMode {
		return fmt.Errorf("%s has mode %v", filepath.Dir(s.path), dir.Mode())
	}
	return nil
}

// again makes the socket again, whatever has its name now.
func (s *containersSocket) again() (*containersSocket, error) {
	if err := makeDir(filepath.Dir(s.path)); err != nil {
		return nil, err
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		// A directory with contents: its removal may be forbidden or take long.
		aside := s.path + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
		if err := os.Rename(s.path, aside); err != nil {
			return nil, fmt.Errorf("move %s away: %w", s.path, err)
		}
	}
	return bind(s.path)
}

// end closes the socket, and removes its name if it still is its own.
func (s *containersSocket) end() error {
	err := s.Close()
	if s.lost() == nil {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// keepName makes the socket again when its name is no longer the broker's own.
func (b *Broker) keepName() {
	tick := time.NewTicker(nameInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.lookAtName()
		case <-b.ctx.Done():
			return
		}
	}
}

func (b *Broker) lookAtName() {
	b.mu.Lock()
	old := b.listener
	b.mu.Unlock()
	why := old.lost()
	if why == nil {
		return
	}
	l, err := old.again()
	if err != nil {
		b.log.Error("pipe: the name of the containers' socket is no longer its own, and cannot be made again", "error", errors.Join(why, err))
		return
	}
	b.log.Error("pipe: the name of the containers' socket was no longer its own; made again. A container has the directory writable: mount it read-only", "error", why)
	b.mu.Lock()
	b.counts.Refused["socket replaced"]++
	b.listener = l
	ended := b.ctx.Err() != nil
	b.mu.Unlock()
	b.closeLater(quota.Owner{}, func() {}, old.Close) // of sockets that were not accepted, too
	if ended {
		_ = l.end()
		return
	}
	b.running.Go(func() { b.serve(l) })
}

// ErrReplaceable is the error of CheckDir for a directory in which others can replace the
// socket.
var ErrReplaceable = errors.New("others can replace the pipe's socket")

// CheckDir checks the directory of a containers' socket as libsconpipe does (trust.c), which
// passes no socket to a broker there otherwise. A directory that does not exist is no error.
func CheckDir(socket string) error {
	dir := filepath.Dir(socket)
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MODE|unix.STATX_UID, &st)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if st.Mode&0o022 != 0 || st.Uid != 0 && st.Uid != overflowUID && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to user %d with mode %#o; it has to belong to root, with mode 0755", ErrReplaceable, dir, st.Uid, st.Mode&0o7777)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 && fs.Flags&unix.ST_RDONLY == 0 {
		return fmt.Errorf("%w: %s is mounted writable; mount it read-only (:ro)", ErrReplaceable, dir)
	}
	return nil
}

// overflowUID is the kernel's default for users that a user namespace does not map.
const overflowUID = 65534

// netnsFile opens the network namespace of a session's process. It goes with the reply to
// hello: only a process with CAP_NET_ADMIN over that namespace can open it, which a container
// that has bound a socket of its own at the broker's name does not have over another's.
func (s *session) netnsFile() (answer reply, err error) {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return answer, err
	}
	ns := -1
	if closed := raw.Control(func(fd uintptr) { ns, err = unix.IoctlRetInt(int(fd), unix.SIOCGSKNS) }); closed != nil {
		return answer, closed
	}
	if err != nil {
		return answer, fmt.Errorf("open a socket's network namespace: %w", err)
	}
	return reply{files: []int{ns}, taken: func() error { return unix.Close(ns) }}, nil
}
