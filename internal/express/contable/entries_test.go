package contable_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// A Ref names one Conentry: not the next one that has its place.
func TestRef(t *testing.T) {
	b := newBed(t, options())
	e := b.compose(7, masqueraded(1), true, start)
	ref, place := e.Ref(), e.Number()
	if b.Live(ref) != e || e.Gone() {
		t.Error("a Conentry is not found by its Ref")
	}
	b.Retire(e)
	if b.Live(ref) != nil || !e.Gone() {
		t.Error("a retired Conentry is found by its Ref")
	}
	b.Release()
	next := b.compose(7, masqueraded(2), true, start)
	if next.Number() != place {
		t.Fatalf("the next one has place %d, not %d", next.Number(), place)
	}
	if b.Live(ref) != nil || b.Live(next.Ref()) != next {
		t.Error("a Ref names the next Conentry at its place")
	}
	ref = next.Ref()
	b.Clear()
	if b.Live(ref) != nil || b.Live(contable.Ref{}) != nil {
		t.Error("a Ref names a Conentry of a table that was cleared")
	}
}

// However connections come and go, each is found by both of its tuples while it is there,
// and at its port.
func TestComeAndGo(t *testing.T) {
	o := options()
	o.Connections, o.PerContainer = 600, 600
	b := newBed(t, o)
	r := rand.New(rand.NewPCG(1, 2))
	there := make(map[int]contable.Ref)
	now := start
	conns := []func(int) conntrack.Conn{masqueraded, published, between, func(i int) conntrack.Conn { return over6(masqueraded(i)) }}
	for range 20000 {
		now = now.Add(10 * time.Millisecond)
		b.Release()
		b.grow()
		i := r.IntN(800)
		conn := conns[i%len(conns)](i)
		conn.ID = uint32(i)
		port := 7 + i%3
		if ref, is := there[i]; is {
			b.Retire(b.Live(ref))
			delete(there, i)
		} else if e, err := b.Compose(endOf(port), conn.Orig, conn, now); err == nil {
			there[i] = e.Ref()
			if i%len(conns) == 2 && i%5 == 0 {
				if err := b.Join(e, endOf(12)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	ports := make(map[int]int)
	for i := range 800 {
		conn := conns[i%len(conns)](i)
		ref, is := there[i]
		for _, tuple := range []conntrack.Tuple{conn.Orig, conn.Reply} {
			if e := b.Lookup(tuple); (e != nil) != is || is && (e != b.Live(ref) || b.Conn(e).ID != uint32(i) || b.Conn(e).Orig != conn.Orig || b.Conn(e).Reply != conn.Reply) {
				t.Errorf("%d, which is there: %v: %+v", i, is, e)
			}
		}
		if is {
			ports[b.Live(ref).Port()]++
			ports[b.Live(ref).Peer()]++
		}
	}
	if len(there) < 200 || len(there) != b.Len() {
		t.Errorf("%d are there, the table has %d", len(there), b.Len())
	}
	for _, port := range []int{7, 8, 9, 12} {
		if n := b.LenOf(port); n != ports[port] {
			t.Errorf("%d at port %d, want %d", n, port, ports[port])
		}
	}
	for _, port := range []int{7, 8, 9, 12} {
		b.ForgetPort(port)
		for _, ref := range there {
			if e := b.Live(ref); e != nil && e.Has(port) {
				t.Errorf("a Conentry of port %d is left", port)
			}
		}
	}
	if b.Len() != 0 {
		t.Errorf("%d are left", b.Len())
	}
}

// A packet that a reader has seen since the time that a sweep began with is no long silence.
func TestSeenByReader(t *testing.T) {
	b := newBed(t, options())
	e := b.compose(7, masqueraded(1), true, start)
	b.half(masqueraded(1).Orig, 7).Packets = 1
	b.Flow(e, start.Add(5*time.Second))
	if n := b.Sweep(start.Add(4 * time.Second)); n != 0 {
		t.Error("it was retired")
	}
}

// A daemon for which the machine has no room says so, and what to do.
func TestNoRoom(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_AS, &before); err != nil {
			t.Fatal(err)
		}
	})
	size, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(size), &pages); err != nil {
		t.Fatal(err)
	}
	const connections, spare = 1 << 20, 200 << 20 // of 288 MB; the heap may grow by a part of 64 MB
	m := datapath.Memory{Halves: make([][]datapath.Half, 4*connections/datapath.PageSlots)}
	limit := unix.Rlimit{Cur: pages*uint64(os.Getpagesize()) + spare, Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_AS, &limit); err != nil {
		t.Fatal(err)
	}
	table, err := contable.New(m, contable.Options{Connections: connections})
	if table != nil || !errors.Is(err, unix.ENOMEM) || !strings.HasSuffix(err.Error(), "; make 'connections' smaller in the settings") {
		t.Errorf("%v", err)
	}
}

// The memory of Conentries that are gone goes back to the kernel, page by page with each sweep,
// and is used again.
func TestMemoryGoesBack(t *testing.T) {
	const connections, pages = 1 << 16, 1 << 16 / datapath.PageSlots
	before := private(t)
	b := full(t, connections)
	used := private(t) - before
	if least := connections * int(unsafe.Sizeof(contable.Conentry{})); used < least {
		t.Fatalf("%d bytes with %d Conentries, want %d at least", used, connections, least)
	}
	now := start
	for range pages {
		now = now.Add(time.Second)
		left := connections / pages
		b.All(func(e *contable.Conentry) {
			if left > 0 {
				b.Retire(e)
				left--
			}
		})
		b.Sweep(now)
	}
	for range pages {
		now = now.Add(time.Second)
		b.Sweep(now)
	}
	left := private(t) - before
	t.Logf("%d bytes with %d Conentries, then %d", used, connections, left)
	if left > used/2 {
		t.Errorf("%d bytes are left of %d", left, used)
	}
	for i := range 3 * datapath.PageSlots {
		conn := masqueraded(i)
		if e, err := b.Compose(endOf(7), conn.Orig, conn, start); err != nil || b.Live(e.Ref()) != e || b.Lookup(conn.Reply) != e {
			t.Fatalf("the next ones: %d: %+v: %v", i, e, err)
		}
	}
}
