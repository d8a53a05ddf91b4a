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

// How many connections may be open at a time: of root, who starts hundreds of
// containers at once, and of all others, who cannot keep root out. More are
// closed at once.
const (
	maxMasters = 512
	maxOthers  = 64
)

// clients are the connections of a listener, each with its peer's rights: the
// socket's mode lets root and the members of its group in. They may read; only
// root, and the user that the daemon runs as, may change anything.
type clients struct {
	net.Listener
	masters, others atomic.Int32 // open
}

// client is one connection.
type client struct {
	net.Conn
	master bool // may change things
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

// whoIs is the process that connected, and whether it may change things. One of
// another user namespace is root only if it is this one's.
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

// clientKey is of the client in the context of its requests.
type clientKey struct{}

func withClient(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, clientKey{}, conn)
}

// PeerPID is the process at the other end of a request's connection, 0 if it is
// not known.
func PeerPID(r *http.Request) int {
	if c, ok := r.Context().Value(clientKey{}).(*client); ok {
		return c.pid
	}
	return 0
}

// MayChange tells whether a request is one of a client that may change things.
func MayChange(r *http.Request) bool {
	c, ok := r.Context().Value(clientKey{}).(*client)
	return ok && c.master
}

// guard refuses those who may only read what is not reading.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && !MayChange(r) {
			Reply(w, http.StatusForbidden, refusal{"only root may change anything; the members of the socket's group may read"})
			return
		}
		next.ServeHTTP(w, r)
	})
}
