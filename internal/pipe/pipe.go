// Package pipe is the broker of bulk data between containers of one host: it
// pairs ends by name, asks whether the network lets them talk, and owns the
// memory that they exchange bytes by. No byte passes through it, but with the
// engine copier.
//
// The way of a connection:
//
//  1. A process connects to the broker's socket (session.go); its network
//     namespace says which container it is of.
//  2. It binds a TCP socket of its own to a name, an address and a port, and hands
//     it over; the broker accepts there (name.go).
//  3. Another process connects a TCP socket of its own to that name and hands it over.
//     Random bytes of the broker have to cross that TCP connection both ways
//     (proof.go): the network decides who may talk to whom.
//  4. An engine (a folder each) makes the memory, each end gets what it may have, and
//     a socket to wake the other one with.
//  5. When a process dies its pidfd says so, and the broker ends its
//     connections. When rules change each connection proves itself again
//     (recheck.go).
package pipe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/pipe/bpf"
	"github.com/scon-project/scon/internal/pipe/engine"
)

// Socket is where a broker with that state directory has its socket: in a
// directory of its own, which is what a container mounts.
func Socket(stateDir string) string { return filepath.Join(stateDir, "pipe", "pipe.sock") }

// NewCopier makes the engine copier. The lock is the broker's.
type NewCopier func(log *slog.Logger, lock sync.Locker) engine.Carrier

// Options configure a Broker. All fields but Allow and Copier are needed.
type Options struct {
	// Socket is the path that containers connect to.
	Socket string
	// Allow are groups: if there are any, both ends of a connection have to have
	// addresses in the same one.
	Allow []netip.Prefix
	// MemoryLimit bounds all rings together, in bytes. A container may hold half
	// of it.
	MemoryLimit int64
	// Copier makes the engine of that name, as copier.New does. nil: there is none.
	Copier NewCopier
	Logger *slog.Logger
}

// Broker answers the processes that use the pipe.
type Broker struct {
	opts      Options
	log       *slog.Logger
	listener  *net.UnixListener
	ctx       context.Context
	stop      context.CancelFunc
	running   sync.WaitGroup
	changed   chan time.Time // when the network's rules have changed, if they have
	proofs    proofs
	distances distances

	mu          sync.Mutex // guards what follows, and what hangs on it
	sessions    map[*session]bool
	names       map[*name]bool
	connections map[*connection]bool
	lastID      uint32
	used        int64            // bytes of rings
	usedBy      map[uint64]int64 // of them, by the container's namespace
	counts      Counts
	program     *bpf.Program   // nil until it is wanted
	noProgram   error          // why it does not work, when that is known
	copier      engine.Carrier // nil: there is none
	attach      attachments
}

// Counts are since the broker's start.
type Counts struct {
	Connections uint64            // made
	Bytes       uint64            // sent in connections that are over
	Refused     map[string]uint64 // by reason
	Grown       uint64            // rings
}

// mostSessions bounds the processes that are connected, and mostSessionsOfNetns those of
// one network namespace, so that a container cannot take all.
const (
	mostSessions        = 4096
	mostSessionsOfNetns = 1024
)

// New makes the socket and serves it.
func New(o Options) (*Broker, error) {
	l, err := listen(o.Socket)
	if err != nil {
		return nil, err
	}
	b := &Broker{
		opts: o, log: o.Logger, listener: l,
		sessions: make(map[*session]bool), names: make(map[*name]bool), connections: make(map[*connection]bool),
		usedBy: make(map[uint64]int64), changed: make(chan time.Time, 1),
		counts: Counts{Refused: make(map[string]uint64)},
	}
	if o.Copier != nil {
		b.copier = o.Copier(o.Logger, &b.mu)
	}
	b.proofs.init()
	b.distances.init()
	b.attach.waiting = make(map[tcpEnd]*attachment)
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.running.Go(b.serve)
	b.running.Go(b.obey)
	return b, nil
}

// listen makes the socket. Any process that can see it may connect: it is mounted for
// that.
func listen(path string) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return nil, fmt.Errorf("set mode of %s: %w", dir, err)
	}
	if conn, err := net.Dial("unixpacket", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another broker answers there", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the stale socket %s: %w", path, err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("set mode of socket %s: %w", path, err)
	}
	return l, nil
}

// Close ends all connections and removes the socket.
func (b *Broker) Close() error {
	b.stop()
	err := b.listener.Close()
	b.mu.Lock()
	for s := range b.sessions {
		s.conn.Close()
	}
	b.mu.Unlock()
	b.running.Wait()
	if b.copier != nil { // first: its helpers are in the program's cgroup
		err = errors.Join(err, b.copier.Close())
	}
	if b.program != nil {
		err = errors.Join(err, b.program.Close())
	}
	if b.attach.ends != nil {
		err = errors.Join(err, b.attach.ends.close())
	}
	return err
}

// serve accepts processes.
func (b *Broker) serve() {
	for {
		conn, err := b.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no more files: existing sessions continue
			b.log.Warn("pipe: accept a process", "error", err)
			if !b.pause() {
				return
			}
			continue
		}
		b.running.Go(func() { b.attend(conn) })
	}
}

// pause waits until resources may be free again; false if the broker ends.
func (b *Broker) pause() bool {
	select {
	case <-time.After(100 * time.Millisecond):
		return true
	case <-b.ctx.Done():
		return false
	}
}

// refuse counts a reason.
func (b *Broker) refuse(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Refused[reason]++
}
