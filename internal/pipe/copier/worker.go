package copier

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// worker is the PD Driver of one core (PipeDevice, section III): a thread that polls the
// pages of its connections for new bytes, submits copies to its stack, and publishes the
// completions in the pages. An idle direction leaves the poll list and rings a doorbell
// when it has work again. The worker sleeps when the list is empty.
type worker struct {
	log    *slog.Logger
	queues *queues
	stack  stack
	epoll  int
	wakeup int // eventfd
	done   chan struct{}
	count  int // connections; the broker's lock guards it

	mu   sync.Mutex
	todo []func() // calls to run on the worker's thread

	// Used by the worker's thread only.
	over      bool
	carriages map[uint32]*carriage
	ends      map[int32]*memory // by the number in epoll's events
	shares    map[quota.Account]*share
	active    []*share     // shares with directions to poll
	paused    []*share     // shares without credit
	passed    []*direction // polled in the current pass
	last      uint32       // last assigned number of a connection or region
	now       func() time.Time
}

const (
	// mostIdlePolls bounds the polls without work, over all directions, before a direction
	// leaves the poll list: some microseconds, about the cost of a sleep and a wake-up.
	mostIdlePolls = 100
	// pollsPerEpoll is the number of polled directions between two checks of the doorbells.
	pollsPerEpoll = 16
)

// newWorker creates a worker, which run serves. If helper is not "", its stack copies with that program.
func newWorker(log *slog.Logger, helper string) (w *worker, err error) {
	w = &worker{
		log: log, epoll: -1, wakeup: -1, done: make(chan struct{}),
		carriages: make(map[uint32]*carriage), ends: make(map[int32]*memory),
		shares: make(map[quota.Account]*share), now: time.Now,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.release())
		}
	}()
	if w.queues, w.stack, err = newStack(log, helper); err != nil {
		return nil, err
	}
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create an epoll instance: %w", err)
	}
	if w.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	if err := w.watch(w.wakeup, 0); err != nil {
		return nil, err
	}
	return w, nil
}

// watch adds a file to the epoll set. Events carry the number.
func (w *worker) watch(fd int, number int32) error {
	err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: number})
	if err != nil {
		return fmt.Errorf("watch a doorbell: %w", err)
	}
	return nil
}

// close stops the thread. It requires that all connections have been closed.
func (w *worker) close() error {
	w.do(func() { w.over = true })
	<-w.done
	return w.release()
}

func (w *worker) release() error {
	var err error
	if w.stack != nil {
		err = w.stack.close()
	}
	if w.queues != nil {
		w.queues.close()
	}
	for _, fd := range []int{w.epoll, w.wakeup} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return err
}

// do runs fn on the worker's thread. It does not wait for it.
func (w *worker) do(fn func()) {
	w.mu.Lock()
	w.todo = append(w.todo, fn)
	w.mu.Unlock()
	_, _ = unix.Write(w.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// pending reports whether calls of do wait for the worker's thread.
func (w *worker) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.todo) > 0
}

// adopt starts serving a connection.
func (w *worker) adopt(g *carriage) {
	w.do(func() {
		w.last++
		g.number = w.last
		w.carriages[g.number] = g
		for i, m := range g.ends {
			m.number = int32(g.number<<1) | int32(i)
			w.ends[m.number] = m
			m.share = w.shareOf(g.copier, m.e)
			err := w.watch(m.bell, m.number)
			for _, r := range []*shared{m.send[0], m.recv[0]} {
				err = errors.Join(err, w.addRegion(r))
			}
			if err != nil {
				w.fail(g, err)
			}
		}
		w.scheduleBoth(g)
	})
}

// addRegion assigns a number to memory and registers it with the stack.
func (w *worker) addRegion(r *shared) error {
	w.last++
	r.region = w.last
	return w.stack.add(r.region, r)
}

// dropRegion unregisters and unmaps memory that no copy uses any more.
func (w *worker) dropRegion(r *shared) {
	w.stack.drop(r.region)
	r.unmap()
}

// enlarge adds the next generation of rings of one direction.
func (g *carriage) enlarge(from *memory, send *shared, to *memory, recv *shared) {
	w := g.worker
	w.do(func() {
		if g.gone {
			send.unmap()
			recv.unmap()
			return
		}
		if err := errors.Join(w.addRegion(send), w.addRegion(recv)); err != nil {
			w.fail(g, err)
		}
		from.send, to.recv = append(from.send, send), append(to.recv, recv)
		w.scheduleBoth(g)
	})
}

// Leave closes end i. Its peer still receives the bytes that it has sent. The broker's lock
// is held.
func (g *carriage) Leave(i int) {
	g.worker.do(func() {
		if g.gone {
			return
		}
		g.directions[1-i].over = true
		g.directions[i].senderLeft = true
		if g.directions[i].passFin(); !g.directions[i].over {
			g.directions[1-i].shutSender()
		}
		g.worker.scheduleBoth(g)
	})
}

// HangUp resets the connection at once.
func (g *carriage) HangUp() { g.worker.do(g.reset) }

// Pause stops all copying until Resume. Only that an end is closed still passes.
func (g *carriage) Pause() <-chan struct{} {
	still := make(chan struct{})
	g.worker.do(func() {
		g.paused = true
		g.stills = append(g.stills, still)
		g.settle()
	})
	return still
}

// Resume ends the pause.
func (g *carriage) Resume() {
	g.worker.do(func() {
		g.paused = false
		g.worker.scheduleBoth(g)
	})
}

// settle reports to Pause that no copy is in progress.
func (g *carriage) settle() {
	if g.directions[0].table.count+g.directions[1].table.count > 0 {
		return
	}
	for _, still := range g.stills {
		close(still)
	}
	g.stills = nil
}

// reset stops both directions and shuts the doorbells down. It runs on the worker's thread.
func (g *carriage) reset() {
	for i, y := range g.directions {
		y.over = true
		if !g.gone {
			g.ends[i].hangUp()
		}
	}
}

// Forget releases the connection's memory. The broker's lock is held, and the broker does
// not use the connection afterwards.
func (g *carriage) Forget() {
	g.worker.count--
	g.worker.do(func() {
		g.reset()
		g.gone = true
		g.worker.releaseIdle(g)
	})
}

// releaseIdle releases a closed connection once no copy of it is in progress.
func (w *worker) releaseIdle(g *carriage) {
	if g.directions[0].table.count+g.directions[1].table.count > 0 {
		return
	}
	for _, m := range g.ends {
		delete(w.ends, m.number)
		m.share.ends--
		for _, all := range [][]*shared{m.send, m.recv, m.lent[:]} {
			for _, r := range all {
				if r != nil {
					w.stack.drop(r.region)
				}
			}
		}
		m.release() // closing the doorbell removes it from the epoll set
	}
	delete(w.carriages, g.number)
}

// fail resets a connection whose process violates the protocol, or whose copy has failed.
func (w *worker) fail(g *carriage, err error) {
	w.log.Debug("pipe: reset a connection", "error", err)
	g.reset()
	go g.lost() // it waits for the broker's lock
}

// scheduleBoth adds both directions of a connection to the poll list.
func (w *worker) scheduleBoth(g *carriage) {
	for _, y := range g.directions {
		w.schedule(y)
	}
}

// schedule adds a direction to the poll list.
func (w *worker) schedule(y *direction) {
	y.idlePolls, y.wantsRoom = 0, false
	if !y.scheduled && !y.over && !y.carriage.paused {
		y.scheduled = true
		y.payer = y.from
		w.enlist(y)
	}
}

// run is the worker's thread.
func (w *worker) run() {
	defer close(w.done)
	debug.SetPanicOnFault(true) // see software.copy
	most := mostIdlePolls
	if runtime.NumCPU() == 1 { // polling keeps the processes from running
		most = 1
	}
	for polls := 0; !w.over; {
		switch {
		case len(w.active) == 0 && len(w.paused) > 0:
			w.sleep(retryAfter)
		case len(w.active) == 0:
			w.sleep(-1)
		case polls >= pollsPerEpoll:
			polls = 0
			w.sleep(0)
		}
		polls += w.pass(most)
	}
}

// sleep waits for doorbells, for timeout in ms; -1: without limit.
func (w *worker) sleep(timeout int) {
	var events [64]unix.EpollEvent
	n, err := unix.EpollWait(w.epoll, events[:], timeout)
	w.resume()
	if err != nil {
		return // EINTR
	}
	for _, event := range events[:n] {
		if event.Fd == 0 {
			w.runCalls()
		} else if m := w.ends[event.Fd]; m != nil {
			w.onDoorbell(m)
		}
	}
}

// runCalls runs the calls that do has queued.
func (w *worker) runCalls() {
	var count [8]byte
	_, _ = unix.Read(w.wakeup, count[:])
	w.mu.Lock()
	todo := w.todo
	w.todo = nil
	w.mu.Unlock()
	for _, fn := range todo {
		fn()
	}
}

// onDoorbell schedules the directions that an end's doorbell concerns. A doorbell at EOF
// leaves the epoll set: the broker reports the end of the session with Leave.
func (w *worker) onDoorbell(m *memory) {
	if w.isPaused(m.share) {
		w.mute(m)
		return
	}
	m.share.spend(doorbellCost)
	m.share.limit.spend(doorbellCost)
	n, err := engine.ReadDoorbell(m.bell)
	if errors.Is(err, unix.EPERM) {
		w.fail(m.carriage, errProtocol)
	}
	if n == 0 || err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, m.bell, nil)
		return
	}
	g := m.carriage
	out := g.outgoing(m)
	w.schedule(out)
	in := g.directions[1-out.number]
	if in.wantsRoom || m.page.page().Own.RecvClosed.Load() != 0 {
		w.schedule(in)
	}
}

// pass polls directions of each share: it submits copies, then handles completions. A
// direction leaves its poll list after polls without work, most for all directions together.
// It returns the number of directions that it has polled.
func (w *worker) pass(most int) (polled int) {
	for _, s := range w.active {
		w.serve(s)
		polled += s.polled
	}
	w.stack.kick()
	for {
		e, ok := w.queues.next()
		if !ok {
			break
		}
		w.finish(e)
	}
	w.retire(max(1, most/max(1, polled)))
	return polled
}

// finish handles a completion.
func (w *worker) finish(e entry) {
	g := w.carriages[e.Conn]
	y := g.directions[e.Table&1]
	y.done(e.Seq)
	if e.Kind != kindCompleted {
		w.fail(g, fmt.Errorf("copy %d bytes: the stack reports a failure", e.Len))
	}
	g.settle()
	if g.gone {
		w.releaseIdle(g)
	}
}

// keep propagates FIN and the end of receiving, and reports whether the direction stays in
// the poll list. A direction that leaves it has asked both processes for doorbells.
func (y *direction) keep(most int) bool {
	if y.table.count > 0 {
		return true
	}
	if y.over || y.carriage.paused {
		return false
	}
	if y.to.page.page().Own.RecvClosed.Load() != 0 {
		y.shutSender()
	}
	if y.passFin(); y.over {
		return false
	}
	y.idlePolls++
	return y.idlePolls < most || y.arm()
}
