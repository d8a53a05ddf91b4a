package api

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Limits of open connections. Root, who starts hundreds of containers at once, has its
// own limit, so that other users cannot exhaust it. Connections beyond a limit are
// closed.
const (
	maxMasters = 512
	maxOthers  = 64
)

// clients is a listener whose connections carry their peer's rights. The socket's mode
// admits root and the members of its group, who may read. Only root, and the user that
// the daemon runs as, may change state.
type clients struct {
	net.Listener
	masters, others atomic.Int32 // open
}

// client is one connection.
type client struct {
	net.Conn
	master bool // may change state
	pid    int  // of the process that connected
	leave  func()
}

// Accept waits for the next client.
func (l *clients) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &client{Conn: conn}
		c.pid, c.master = whoIs(conn)
		open, most := &l.others, int32(maxOthers)
		if c.master {
			open, most = &l.masters, maxMasters
		}
		c.leave = sync.OnceFunc(func() { open.Add(-1) })
		if open.Add(1) <= most {
			return c, nil
		}
		c.Close()
	}
}

func (c *client) Close() error {
	c.leave()
	return c.Conn.Close()
}

// whoIs returns the process that connected and whether it may change state. A user of
// another user namespace counts as root only if it maps to root of this one.
func whoIs(conn net.Conn) (pid int, master bool) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, false
	}
	var peer *unix.Ucred
	control := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if control != nil || err != nil {
		return 0, false
	}
	return int(peer.Pid), peer.Uid == 0 || int(peer.Uid) == os.Geteuid()
}

// clientKey is the context key of a request's client.
type clientKey struct{}

func withClient(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, clientKey{}, conn)
}

// PeerPID returns the process at the other end of a request's connection, 0 if unknown.
func PeerPID(r *http.Request) int {
	if c, ok := r.Context().Value(clientKey{}).(*client); ok {
		return c.pid
	}
	return 0
}

// MayChange reports whether a request's client may change state.
func MayChange(r *http.Request) bool {
	c, ok := r.Context().Value(clientKey{}).(*client)
	return ok && c.master
}

// guard refuses changes by clients that may only read.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && !MayChange(r) {
			Reply(w, http.StatusForbidden, refusal{"only root may change state; members of the socket's group may read"})
			return
		}
		next.ServeHTTP(w, r)
	})
}
