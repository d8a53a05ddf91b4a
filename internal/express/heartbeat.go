package express

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/metrics"
)

// beatInterval is how often the loop writes the heartbeat. The programs become
// inert after five that are missing.
const beatInterval = 200 * time.Millisecond

// inertAfter is the time without a heartbeat after which the programs have been inert.
const inertAfter = 5 * beatInterval

// heartbeat decides whether the programs may forward. It owns what the daemon
// writes for that into the settings that it shares with them: the heartbeat, the
// generation, and the pause.
//
// While rules have changed that the loop has not read, there is no heartbeat:
// the programs are inert.
type heartbeat struct {
	dp  beater
	log *slog.Logger
	may func(now time.Time) bool // whether it may be written, by what the loop knows of the devices

	mu      sync.Mutex // guards the fields below, and is held while the heartbeat is written
	rules   progress   // changes of the rules, which the loop reads
	network progress   // changes that the hooks have to note, by the numbers of their events
	paused  bool
	ended   bool
	inert   bool          // the last one is taken back
	beats   uint64        // since the start
	last    time.Time     // of them, or when express was paused or resumed
	called  time.Time     // beat was
	ticked  time.Time     // tick was called, by a goroutine that waits for nothing else
	stopped bool          // tick was not called for long, and the loop has not taken that in
	since   time.Time     // of the first change that was not read
	unknown metrics.Times // how long there were such changes, each time since the start
}

// progress is how many changes were announced, and up to which of them the loop has taken
// them in.
type progress struct{ announced, taken uint64 }

func (p progress) behind() bool { return p.taken < p.announced }

// beater is what a heartbeat needs of the datapath.
type beater interface {
	Settings() *datapath.Settings
	Beat() error
	Tick() time.Duration
}

// newHeartbeat returns that of a datapath, for the loop to write while may is true. The
// rules that exist have not been read.
func newHeartbeat(dp beater, log *slog.Logger, may func(now time.Time) bool) *heartbeat {
	return &heartbeat{dp: dp, log: log, may: may, rules: progress{announced: 1}}
}

// newGeneration makes every decision stale at once. Any goroutine may call it.
func (h *heartbeat) newGeneration(reason string) {
	generation := &h.dp.Settings().Generation
	if atomic.AddUint32(generation, 1) == 0 {
		atomic.AddUint32(generation, 1)
	}
	h.log.Debug("new generation", "reason", reason)
}

// rulesChanged makes the programs inert until the loop has read the rules, and knows
// which decisions they concern. Any goroutine may call it.
func (h *heartbeat) rulesChanged() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.rules.behind() {
		h.since = time.Now()
	}
	h.rules.announced++
	h.takeBack()
}

// unread reports whether rules have changed since they were read. The loop calls
// rulesRead with change after it has read them.
func (h *heartbeat) unread() (change uint64, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rules.announced, h.rules.behind()
}

// networkChanged says that the hooks have to note an event. Any goroutine may call it.
func (h *heartbeat) networkChanged(event uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.network.announced = max(h.network.announced, event)
}

// networkNoted says that the hooks have noted the events up to one.
func (h *heartbeat) networkNoted(event uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.network.taken = event
}

// unnoted reports whether there are events that the hooks have not noted.
func (h *heartbeat) unnoted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.network.behind()
}

// rulesRead says that the rules were read after a change.
func (h *heartbeat) rulesRead(change uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rules.taken = change
	if !h.rules.behind() && !h.since.IsZero() {
		h.unknown.Add(time.Since(h.since))
		h.since = time.Time{}
	}
}

// ticks says when a heartbeat is due, until ctx ends. A process that stands still, as one
// that is stopped, shows in it: the goroutine waits for nothing else.
func (h *heartbeat) ticks(ctx context.Context) <-chan time.Time {
	h.tick(time.Now())
	due := make(chan time.Time, 1)
	go func() {
		beat := time.NewTicker(beatInterval) // the only timer of an idle daemon
		defer beat.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-beat.C:
				h.tick(time.Now())
				select {
				case due <- now:
				default:
				}
			}
		}
	}()
	return due
}

func (h *heartbeat) tick(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = h.stood(now)
	h.ticked = now
}

// stood reports whether the process stood still for so long that the programs have been
// inert, and the loop has not resumed since.
func (h *heartbeat) stood(now time.Time) bool {
	return h.stopped || !h.ticked.IsZero() && now.Sub(h.ticked) > inertAfter
}

// resume reports whether the process stood still: what was announced meanwhile may not have
// been read from the kernel yet. There is no heartbeat before. The loop says what is stale
// then.
func (h *heartbeat) resume(now time.Time) (stood bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if stood = h.stood(now); stood {
		h.stopped, h.ticked = false, now
	}
	return stood
}

// beat writes the heartbeat, unless the programs have to be inert. Only the loop
// calls it. If it did not for long, every decision becomes stale first.
func (h *heartbeat) beat() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if !h.called.IsZero() && now.Sub(h.called) > inertAfter {
		h.newGeneration("the daemon was busy for long")
	}
	h.called = now
	if h.paused || h.ended || h.rules.behind() || h.stood(now) || !h.may(now) {
		return nil
	}
	h.beats++
	h.last, h.inert = now, false
	err := h.dp.Beat()
	if h.stood(time.Now()) { // meanwhile
		h.takeBack()
	}
	return err
}

// beatDuring runs wait, which may take seconds, and writes the heartbeat
// meanwhile. Only the loop calls it.
func (h *heartbeat) beatDuring(wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	for {
		select {
		case <-done:
			return
		case <-beat.C:
			if err := h.beat(); err != nil {
				h.log.Error("writing the heartbeat", "error", err)
			}
		}
	}
}

// setPaused makes all packets regular, or lets the programs forward again. Only
// the loop calls it.
func (h *heartbeat) setPaused(paused bool) error {
	h.mu.Lock()
	h.paused, h.last = paused, time.Now()
	h.mu.Unlock()
	if paused {
		h.dp.Settings().Paused = 1
		h.makeInert()
		return nil
	}
	h.dp.Settings().Paused = 0
	return h.beat()
}

// isPaused reports what setPaused has set.
func (h *heartbeat) isPaused() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paused
}

// written counts the heartbeats since the start.
func (h *heartbeat) written() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.beats
}

// silence returns for how long no heartbeat was written, 0 if express is paused.
func (h *heartbeat) silence(now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused {
		return 0
	}
	return now.Sub(h.last)
}

// rulesUnknown returns for how long rules were changed and not read, each time since the
// start.
func (h *heartbeat) rulesUnknown() metrics.Times {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unknown
}

// restTime is more than a packet takes from one program to the other.
const restTime = 20 * time.Millisecond

// rest makes the programs inert, and lets the packets leave that are between two
// of them.
func (h *heartbeat) rest() {
	h.makeInert()
	time.Sleep(restTime)
}

// end makes the programs inert for as long as the daemon lives.
func (h *heartbeat) end() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.makeInert()
}

// makeInert makes the programs inert until the next heartbeat.
func (h *heartbeat) makeInert() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takeBack()
}

// takeBack takes the heartbeat back, with the lock held: once, since leases are read by its
// low 32 bits.
func (h *heartbeat) takeBack() {
	if h.inert {
		return
	}
	h.inert = true
	ticks := uint64(2 * time.Second / h.dp.Tick())
	last := &h.dp.Settings().Heartbeat
	atomic.StoreUint64(last, atomic.LoadUint64(last)-ticks)
}
