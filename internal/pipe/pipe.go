// Package pipe is the broker of bulk data between containers of one host, after the
// PD Driver of the paper PipeDevice. It pairs two processes by name, checks that the
// network lets them talk, and owns the memory of their connection. Only the engine
// copier moves bytes in the broker.
//
// A connection, step by step:
//
//  1. A process connects to the broker's socket (session.go). The network namespace of
//     that socket identifies the container.
//  2. A server binds a TCP socket of its own to a name, which is an address and a port,
//     and passes it to the broker, which accepts there (name.go).
//  3. A client connects a TCP socket of its own to that name and passes it to the
//     broker. Random bytes from the broker must cross that TCP connection in both
//     directions (proof.go): the network decides which processes may talk.
//  4. An engine (one folder each) creates the memory. Each end gets the files that it may
//     map, and a doorbell to wake its peer.
//  5. When a process dies, its pidfd becomes readable, and the broker ends its
//     connections. When rules change, each connection proves itself again (recheck.go).
package pipe

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/pipe/bpf"
	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
	"github.com/scon-project/scon/internal/service"
)

// Socket returns the path of the containers' socket of a broker with that state
// directory. It has a directory of its own, which containers mount.
func Socket(stateDir string) string { return filepath.Join(stateDir, "pipe", "pipe.sock") }

// NewCopier makes the engine copier. The lock is the broker's.
type NewCopier func(log *slog.Logger, lock sync.Locker) engine.Carrier

// Options configure a Broker. All fields but Allow, Share, Engines and Copier
// are needed.
type Options struct {
	// Socket is the path that containers connect to.
	Socket string
	// Allow lists groups of addresses. Unless it is empty, all addresses of a
	// connection must be in one group.
	Allow []netip.Prefix
	// MemoryLimit bounds the memory of all rings, in bytes.
	MemoryLimit int64
	// Share is the share of each resource that a container may take of the amount that
	// the others have left, in percent. 0: 50.
	Share int
	// Engines lists the engines that connections may use. nil: all.
	Engines []Engine
	// Copier makes the engine copier, as copier.New does; nil: no such engine.
	Copier NewCopier
	Logger *slog.Logger
}

// Broker serves the processes that use the pipe.
type Broker struct {
	opts       Options
	log        *slog.Logger
	ctx        context.Context
	stop       context.CancelFunc
	running    sync.WaitGroup
	pulse      *service.Pulse // of recheckAll
	changed    chan time.Time // time of a change of rules that is not processed yet
	moves      moves
	random     io.Reader // of marks
	proofs     proofs
	distances  distances
	rejecting  chan struct{} // semaphore of reject
	ledger     *quota.Ledger
	closes     *quota.Gate // closes of files that processes have passed
	hung       hung        // of them, those that hang
	calls      *quota.Gate // calls on sockets that processes share
	checks     *quota.Gate // proofs after changes of rules
	crossings  *quota.Gate // proofs under "scon run"
	makings    *quota.Gate // connections in creation after such a proof
	pooledFrom int         // connections of a process that has a pool
	absences   *quota.Gate // recent answers of tellAbsence

	mu          sync.Mutex // guards the fields below and everything reachable from them
	listener    *containersSocket
	sessions    map[*session]bool
	names       map[*name]bool
	connections map[*connection]bool
	changes     uint64     // of rules so far
	still       *stillness // of the latest of them, or nil
	counts      Counts
	program     *bpf.Program // of the engine bpf; loaded on first use
	programs    attempt      // attempts to load it
	newProgram  func() (*bpf.Program, error)
	copier      engine.Carrier // nil: no such engine
	attach      attachments
}

// Counts are totals since the broker's start.
type Counts struct {
	Connections uint64            // made
	Bytes       uint64            // sent in connections that have ended
	Refused     map[string]uint64 // by reason
	Grown       uint64            // rings
}

// New makes the containers' socket and serves it until Close.
func New(o Options) (*Broker, error) {
	ledger, err := newLedger(o)
	if err != nil {
		return nil, err
	}
	l, err := listen(o.Socket)
	if err != nil {
		return nil, err
	}
	b := &Broker{
		opts: o, log: o.Logger, listener: l,
		sessions: make(map[*session]bool), names: make(map[*name]bool), connections: make(map[*connection]bool),
		rejecting: make(chan struct{}, mostRejecting),
		ledger:    ledger, closes: quota.NewGate(mostCloses), calls: quota.NewGate(mostCalls), checks: quota.NewGate(mostProofs), crossings: quota.NewGate(mostCrossings), makings: quota.NewGate(mostMakings), pooledFrom: fewestPooled, absences: quota.NewGate(mostAbsences),
		random: rand.Reader, changed: make(chan time.Time, 1), pulse: service.NewPulse(),
		counts: Counts{Refused: make(map[string]uint64)},
	}
	b.newProgram = func() (*bpf.Program, error) { return bpf.New(b.log, &b.mu) }
	if o.Copier != nil && b.allowsEngine(Copier) {
		b.copier = o.Copier(o.Logger, &b.mu)
	}
	b.hung.of = make(map[quota.Account]int)
	b.proofs.init()
	b.distances.init()
	b.attach.waiting, b.attach.crossings = make(map[tcpEnd]*attachment), make(map[*crossing]bool)
	b.attach.taken = make(map[ownEnd]*attachment)
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.running.Go(func() { b.serve(l) })
	b.running.Go(b.keepName)
	b.running.Go(b.recheckAll)
	return b, nil
}

// Close ends all connections and removes the socket.
func (b *Broker) Close() error {
	b.stop()
	b.mu.Lock()
	err := b.listener.end()
	for s := range b.sessions {
		s.hangUp()
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	}
	b.mu.Unlock()
	b.running.Wait()
	if b.copier != nil { // before the program: its helpers are in the program's cgroup
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

// serve accepts processes until the socket is closed.
func (b *Broker) serve(l *containersSocket) {
	for {
		conn, err := l.AcceptUnix()
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
		b.running.Go(func() { b.handle(conn) })
	}
}

// pause waits 100 ms for resources to become free. It returns false when the broker ends.
func (b *Broker) pause() bool {
	select {
	case <-time.After(100 * time.Millisecond):
		return true
	case <-b.ctx.Done():
		return false
	}
}

// refuse counts a refused request by reason.
func (b *Broker) refuse(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Refused[reason]++
}
