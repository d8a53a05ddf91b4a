package copier

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// worker is the paper's PD Driver at one core: it sees what applications want to
// send, has the core's stack copy it, and tells them. It sleeps when nothing is
// to be done; what stays quiet has to ring for it.
type worker struct {
	log    *slog.Logger
	queues *queues
	stack  stack
	epoll  int
	wakeup int // eventfd
	done   chan struct{}
	count  int // connections; the broker's lock guards it

	mu   sync.Mutex
	todo []func() // for its thread

	// The thread's own.
	over      bool
	carriages map[uint32]*carriage
	ends      map[int32]*memory // by what epoll knows them by
	active    []*direction
	last      uint32 // number that was given
}

const (
	// mostVain is how often ways are looked at in vain, all together, before they
	// have to ring: some microseconds, which sleeping and being woken takes, too.
	mostVain = 100
	// looksPerBell is how many ways are looked at between two looks at doorbells.
	looksPerBell = 16
)

// newWorker starts one. Its stack has a helper program copy, if there is one.
func newWorker(log *slog.Logger, helper string) (w *worker, err error) {
	w = &worker{
		log: log, epoll: -1, wakeup: -1, done: make(chan struct{}),
		carriages: make(map[uint32]*carriage), ends: make(map[int32]*memory),
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
		return nil, fmt.Errorf("make an epoll set: %w", err)
	}
	if w.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	if err := w.watch(w.wakeup, 0); err != nil {
		return nil, err
	}
	go w.run()
	return w, nil
}

func (w *worker) watch(fd int, number int32) error {
	err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: number})
	if err != nil {
		return fmt.Errorf("watch a doorbell: %w", err)
	}
	return nil
}

// close ends it. Its connections are gone.
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

// do has something done by the worker's thread.
func (w *worker) do(fn func()) {
	w.mu.Lock()
	w.todo = append(w.todo, fn)
	w.mu.Unlock()
	_, _ = unix.Write(w.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// behind says whether there is something to do that its thread has not seen.
func (w *worker) behind() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.todo) > 0
}

// adopt takes a connection.
func (w *worker) adopt(g *carriage) {
	w.do(func() {
		w.last++
		g.number = w.last
		w.carriages[g.number] = g
		for i, m := range g.ends {
			m.number = int32(g.number<<1) | int32(i)
			w.ends[m.number] = m
			err := w.watch(m.bell, m.number)
			for _, r := range []*shared{m.send[0], m.recv[0]} {
				err = errors.Join(err, w.know(r))
			}
			if err != nil {
				w.fail(g, err)
			}
		}
		w.look(g)
	})
}

// know tells the stack of a ring.
func (w *worker) know(r *shared) error {
	w.last++
	r.region = w.last
	return w.stack.add(r.region, r)
}

// leave forgets a ring that no copy uses any more.
func (w *worker) leave(r *shared) {
	w.stack.drop(r.region)
	r.unmap()
}

// enlarge tells of larger rings of one way.
func (g *carriage) enlarge(from *memory, send *shared, to *memory, recv *shared) {
	w := g.worker
	w.do(func() {
		if g.gone {
			send.unmap()
			recv.unmap()
			return
		}
		if err := errors.Join(w.know(send), w.know(recv)); err != nil {
			w.fail(g, err)
		}
		from.send, to.recv = append(from.send, send), append(to.recv, recv)
		w.look(g)
	})
}

// Leave hears that an end has left: its peer still gets what it has sent.
func (g *carriage) Leave(i int) {
	g.worker.do(func() {
		if g.gone {
			return
		}
		g.directions[1-i].over = true
		g.directions[i].last = true
		if g.directions[i].end(); !g.directions[i].over {
			g.directions[1-i].deafen()
		}
		g.worker.look(g)
	})
}

// HangUp ends it at once.
func (g *carriage) HangUp() { g.worker.do(g.reset) }

func (g *carriage) reset() {
	for i, y := range g.directions {
		y.over = true
		if !g.gone {
			g.ends[i].hangUp()
		}
	}
}

// Forget gives back what it has. Nobody has it any more.
func (g *carriage) Forget() {
	g.worker.count--
	g.worker.do(func() {
		g.reset()
		g.gone = true
		g.worker.bury(g)
	})
}

// bury releases it once no copy is under way.
func (w *worker) bury(g *carriage) {
	if g.directions[0].table.count+g.directions[1].table.count > 0 {
		return
	}
	for _, m := range g.ends {
		delete(w.ends, m.number)
		for _, all := range [][]*shared{m.send, m.recv, m.lent[:]} {
			for _, r := range all {
				if r != nil {
					w.stack.drop(r.region)
				}
			}
		}
		m.release() // and with its bell's file, it is out of the epoll set
	}
	delete(w.carriages, g.number)
}

// fail ends a connection whose application lies, or that cannot go on.
func (w *worker) fail(g *carriage, err error) {
	w.log.Debug("pipe: end a connection", "error", err)
	g.reset()
	go g.lost() // it may have to wait for the lock
}

// look has both ways of a connection looked at.
func (w *worker) look(g *carriage) {
	for _, y := range g.directions {
		w.list(y)
	}
}

// list has a way looked at.
func (w *worker) list(y *direction) {
	y.vain, y.wantsRoom = 0, false
	if !y.listed && !y.over {
		y.listed = true
		w.active = append(w.active, y)
	}
}

// run is the worker's thread.
func (w *worker) run() {
	defer close(w.done)
	debug.SetPanicOnFault(true) // see software.copy
	vain := mostVain
	if runtime.NumCPU() == 1 { // looking keeps those away that one waits for
		vain = 1
	}
	for looks := 0; !w.over; looks += len(w.active) {
		if len(w.active) == 0 {
			w.sleep(-1)
		} else if looks >= looksPerBell {
			looks = 0
			w.sleep(0)
		}
		w.pass(max(1, vain/max(1, len(w.active))))
	}
}

// sleep waits for doorbells.
func (w *worker) sleep(timeout int) {
	var events [64]unix.EpollEvent
	n, err := unix.EpollWait(w.epoll, events[:], timeout)
	if err != nil {
		return // a signal
	}
	for _, event := range events[:n] {
		if event.Fd == 0 {
			w.work()
		} else if m := w.ends[event.Fd]; m != nil {
			w.rang(m)
		}
	}
}

// work does what others want of this thread.
func (w *worker) work() {
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

// rang answers a doorbell. One that is at its end is not looked at again: the
// session's end is heard of elsewhere.
func (w *worker) rang(m *memory) {
	var bytes [256]byte
	n, err := unix.Read(m.bell, bytes[:])
	if n == 0 || err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, m.bell, nil)
		return
	}
	g := m.carriage
	sends := g.outgoing(m)
	w.list(sends)
	gets := g.directions[1-sends.number]
	if gets.wantsRoom || m.page.page().Own.Deaf.Load() != 0 {
		w.list(gets)
	}
}

// pass looks at all active ways once.
func (w *worker) pass(most int) {
	for _, y := range w.active {
		if y.over {
			continue
		}
		some, err := y.offer(w)
		if err != nil {
			w.fail(y.carriage, err)
		} else if some {
			y.vain = 0
		}
	}
	w.stack.kick()
	for {
		e, ok := w.queues.next()
		if !ok {
			break
		}
		w.finish(e)
	}
	w.retire(most)
}

// finish passes a completion on.
func (w *worker) finish(e entry) {
	g := w.carriages[e.Conn]
	y := g.directions[e.Table&1]
	y.done(e.Seq)
	if e.Kind != kindCompleted {
		w.fail(g, fmt.Errorf("copy %d bytes: not done", e.Len))
	}
	if g.gone {
		w.bury(g)
	}
}

// retire keeps those ways active that had something to do of late.
func (w *worker) retire(most int) {
	active := w.active[:0]
	for _, y := range w.active {
		if y.keep(most) {
			active = append(active, y)
		} else {
			y.listed = false
		}
	}
	clear(w.active[len(active):])
	w.active = active
}

// keep passes on what is no bytes, and says whether the way is to be looked at
// again.
func (y *direction) keep(most int) bool {
	if y.table.count > 0 {
		return true
	}
	if y.over {
		return false
	}
	if y.to.page.page().Own.Deaf.Load() != 0 {
		y.deafen()
	}
	if y.end(); y.over {
		return false
	}
	y.vain++
	return y.vain < most || y.arm()
}
