package copier

import (
	"io"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
	"github.com/scon-project/scon/internal/pipe/quota"
)

// bench is a worker whose thread is the test, at a time that the test sets.
type bench struct {
	t      testing.TB
	copier *Copier
	worker *worker
	time   time.Time
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, copier: &Copier{lock: &sync.Mutex{}}, time: time.Now()}
	var err error
	if b.worker, err = newWorker(slog.New(slog.NewTextHandler(io.Discard, nil)), ""); err != nil {
		t.Fatal(err)
	}
	b.worker.now = func() time.Time { return b.time }
	t.Cleanup(func() { _ = b.worker.release() })
	return b
}

// open opens a connection whose ends both belong to a container.
func (b *bench) open(container string) *carriage {
	b.t.Helper()
	return b.openLimited(container, 0)
}

// openLimited does so for a container whose processors are limited.
func (b *bench) openLimited(container string, limit float64) *carriage {
	b.t.Helper()
	a := quota.Owner{Cgroup: "/" + container}.Account()
	closeFD := func(fd int) { unix.Close(fd) }
	ends := [2]*engine.End{{Owner: a, Limit: limit, CloseFD: closeFD, Doorbell: -1}, {Owner: a, Limit: limit, CloseFD: closeFD, Doorbell: -1}}
	g, err := b.copier.open(b.worker, ends, func() {})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		for i, m := range g.ends {
			m.Close()
			m.release()
			unix.Close(ends[i].Doorbell)
		}
	})
	b.worker.sleep(0)
	return g
}

// exchange writes n bytes in the first direction, and reads what has arrived.
func exchange(g *carriage, n uint64) {
	from, to := g.ends[0].page.page(), g.ends[1].page.page()
	to.Own.Tail.Store(to.Peer.Head.Load())
	from.Own.Head.Store(from.Own.Head.Load() + n)
}

// copied returns how many bytes of the first directions have arrived.
func copied(all ...*carriage) (n uint64) {
	for _, g := range all {
		n += g.directions[0].copied.Load()
	}
	return n
}

// polls returns how many directions the worker polls in n passes.
func (b *bench) polls(n int) (polled int) {
	for range n {
		b.worker.sleep(0)
		polled += b.worker.pass(mostIdlePolls)
	}
	return polled
}

// An owner with many connections gets as much of the worker as an owner with one.
func TestOwnersShareWorker(t *testing.T) {
	b := newBench(t)
	var many []*carriage
	for range 32 {
		many = append(many, b.open("many"))
	}
	one := b.open("one")
	for range 200 {
		for _, g := range append(many[:len(many):len(many)], one) {
			exchange(g, engine.SmallestRing-g.directions[0].submitted%engine.SmallestRing-sent(g))
		}
		b.worker.pass(1 << 20) // no direction leaves the poll list
	}
	theirs, its := copied(many...), copied(one)
	t.Logf("bound: 32 connections of an owner: %d bytes, 1 connection of another: %d bytes", theirs, its)
	if its == 0 || theirs > 3*its {
		t.Errorf("32 connections of an owner: %d bytes, 1 connection of another: %d bytes", theirs, its)
	}
}

// sent returns the bytes that were written and not yet copied.
func sent(g *carriage) uint64 {
	return g.ends[0].page.page().Own.Head.Load() - g.directions[0].submitted
}

// An owner alone gets what others leave: its bytes are copied in one pass after the other.
func TestOwnerAloneGetsAll(t *testing.T) {
	b := newBench(t)
	b.open("idle")
	g := b.open("alone")
	for range 1000 {
		exchange(g, engine.SmallestRing)
		b.polls(2)
	}
	if n := copied(g); n != 1000*engine.SmallestRing {
		t.Errorf("%d bytes were copied, want %d", n, 1000*engine.SmallestRing)
	}
}

// Doorbells without bytes cost the broker a bounded amount; another owner is not delayed, and
// the bytes of the owner that rings them arrive once it has credit again.
func TestDoorbellsWithoutBytes(t *testing.T) {
	b := newBench(t)
	rude, other := b.open("rude"), b.open("other")
	b.polls(2 * mostIdlePolls) // until all directions are idle
	ring := func(g *carriage) { engine.Signal(g.ends[0].e.Doorbell) }
	polled, handled := 0, 0
	for range 4 * mostCredit / doorbellCost {
		ring(rude)
		n := b.polls(1)
		if n > 0 {
			handled++
		}
		for range mostIdlePolls { // until the direction is idle again
			n += b.worker.pass(mostIdlePolls)
		}
		polled += n
	}
	t.Logf("bound: %d doorbells without bytes within 0 s: %d handled, %d polls", 4*mostCredit/doorbellCost, handled, polled)
	if limit := mostCredit / doorbellCost; handled > limit || polled > limit*2*mostIdlePolls {
		t.Errorf("%d doorbells handled with %d polls, want at most %d doorbells", handled, polled, limit)
	}
	exchange(rude, 100)
	exchange(other, 100)
	ring(rude)
	ring(other)
	b.worker.sleep(0)
	b.polls(10)
	if copied(rude) != 0 || copied(other) != 100 {
		t.Errorf("%d bytes of the owner without credit were copied, %d of the other, want 0 and 100", copied(rude), copied(other))
	}
	b.time = b.time.Add(time.Second)
	b.worker.sleep(0)
	b.polls(10)
	if copied(rude) != 100 {
		t.Errorf("%d bytes were copied after a second, want 100", copied(rude))
	}
}

// Single bytes in many connections, without doorbells, cost a bounded amount, too.
func TestSingleBytes(t *testing.T) {
	b := newBench(t)
	var all []*carriage
	for range 64 {
		all = append(all, b.open("rude"))
	}
	for range 2 * mostCredit / pieceCost / len(all) {
		for _, g := range all {
			exchange(g, 1)
		}
		b.worker.pass(1 << 20) // no direction leaves the poll list
	}
	t.Logf("bound: 64 connections that move single bytes: %d copies within 0 s", copied(all...))
	if n := copied(all...); n > mostCredit/pieceCost+uint64(len(all)) {
		t.Errorf("%d bytes were copied one by one, want at most %d", n, mostCredit/pieceCost)
	}
	if len(b.worker.active) != 0 || len(b.worker.paused) != 1 {
		t.Errorf("%d shares are active and %d paused, want 0 and 1", len(b.worker.active), len(b.worker.paused))
	}
}

// A container whose processors are limited has the broker copy no more than as much work would
// be of its own, though bytes that it lends cost it nothing; one without a limit gets all.
func TestLentBytesAreCharged(t *testing.T) {
	for _, limit := range []float64{0.05, 0} {
		b := newBench(t)
		lender := b.openLimited("lender", limit)
		lend(t, lender, engine.SmallestRing)
		begun, bells := b.time, lender.ends[0].e.Doorbell
		for range 500 { // half a second
			for range 32 {
				if sent(lender) == 0 {
					lendNext(lender)
				}
				engine.Signal(bells)
				b.polls(1)
			}
			b.time = b.time.Add(time.Millisecond)
		}
		rate := float64(copied(lender)) / b.time.Sub(begun).Seconds()
		t.Logf("bound: with a limit of %v processors %.0f lent bytes a second", limit, rate)
		if limit > 0 && rate > 1.2*limit*costOfProcessor || limit == 0 && rate < 3*0.05*costOfProcessor {
			t.Errorf("with a limit of %v processors %.0f bytes a second were copied", limit, rate)
		}
	}
}

// lend has the first end lend a buffer.
func lend(t *testing.T, g *carriage, size int64) {
	t.Helper()
	file, err := unix.MemfdCreate("lent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if err := unix.Fallocate(file, 0, 0, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, lentSeals); err != nil {
		t.Fatal(err)
	}
	if _, err := g.ends[0].Lend(file); err != nil {
		t.Fatal(err)
	}
}

// lendNext sends the buffer of lend once more, and reads what has arrived.
func lendNext(g *carriage) {
	from := g.ends[0].page.page()
	next, at := &from.Loans[from.Lent.Load()%mostLoans], from.Own.Head.Load()
	next.Start, next.End, next.Offset = at, at+engine.SmallestRing, 0
	next.Region.Store(1)
	from.Lent.Add(1)
	exchange(g, engine.SmallestRing)
}

// The source of costOfProcessor: bytes that a thread copies in a second of its processor time
// between memory that no cache has, in pieces of the worker's length.
func BenchmarkColdCopy(b *testing.B) {
	const size, piece = 256 << 20, 128 << 10
	from, to := make([]byte, size), make([]byte, size)
	copy(to, from) // allocates both
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begun, copied := used(), 0
	for b.Loop() {
		at := copied % size
		copied += copy(to[at:at+piece], from[at:at+piece])
	}
	b.ReportMetric(float64(copied)/(used()-begun).Seconds()/1e9, "GB/s-of-processor")
}
