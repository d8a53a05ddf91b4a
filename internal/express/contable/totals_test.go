package contable_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Totals never fall, whatever happens to the connections they come from, and
// no packet is counted twice.
func TestTotals(t *testing.T) {
	b := newBed(t, options())
	rnd := rand.New(rand.NewPCG(3, 4))
	now := start
	var want contable.Totals
	for i := range 2000 {
		now = now.Add(30 * time.Millisecond)
		port := 7 + rnd.IntN(3)
		switch rnd.IntN(6) {
		case 0, 1:
			if b.Len() < 16 {
				b.compose(port, masqueraded(i), true, now)
			}
		case 2:
			b.All(func(e *contable.Conentry) {
				if b.Conn(e).ID%7 == uint32(i%7) {
					b.Retire(e)
				}
			})
		case 3:
			b.Release()
		case 4:
			if i%5 == 0 {
				b.ForgetPort(port)
			}
		}
		// Packets of those that are retired may be in flight, too.
		for j := range b.halves {
			if h := &b.halves[j]; h.Key.Addrs != 0 {
				h.Packets += 2
				h.Bytes += 100
				want.Packets += 2
				want.Bytes += 100
				if h.Key.Side>>1 != 0 {
					want.SentPackets += 2
					want.SentBytes += 100
				}
			}
		}
		byPort, all := b.Totals()
		if all != want {
			t.Fatalf("step %d: totals %+v, want %+v", i, all, want)
		}
		var sum contable.Totals
		for _, p := range byPort {
			sum.Packets += p.Packets
			sum.Bytes += p.Bytes
			sum.SentPackets += p.SentPackets
			sum.SentBytes += p.SentBytes
		}
		if sum != all {
			t.Fatalf("step %d: the ports sum up to %+v, not %+v", i, sum, all)
		}
	}
}

// The totals of a port that is gone are no longer its own: another device may
// get its index.
func TestForgetPort(t *testing.T) {
	b := newBed(t, options())
	for i, port := range []int{7, 7, 8} {
		b.compose(port, masqueraded(i), true, start)
		b.half(masqueraded(i).Orig, port).Packets = 10
	}
	b.Retire(b.Lookup(masqueraded(0).Orig))
	b.ForgetPort(7)
	if b.LenOf(7) != 0 || b.LenOf(8) != 1 {
		t.Errorf("%d and %d Conentries left", b.LenOf(7), b.LenOf(8))
	}
	for range 2 {
		byPort, all := b.Totals()
		if byPort[7].Packets != 0 || byPort[8].Packets != 10 || byPort[0].Packets != 20 || all.Packets != 30 {
			t.Errorf("totals %+v, %+v", byPort, all)
		}
		b.Release()
	}
}

// No call visits more places than it was given, with a table of 1,048,576
// connections as with this one: the entries of a piece lie in it.
func TestPiecesAreBounded(t *testing.T) {
	const piece = 16
	b := newBed(t, options())
	for i := range 40 {
		b.compose(7, masqueraded(i), true, start)
		b.half(masqueraded(i).Orig, 7).Packets = 1
	}
	b.Sweep(start) // counts the first packet of each
	for i := range 40 {
		b.half(masqueraded(i).Reply, 0).Bytes = 1
	}
	for from, counted := uint32(0), uint64(0); ; {
		in := uint64(0)
		b.All(func(e *contable.Conentry) {
			if n := uint32(e.Number()); n >= from && n < from+piece {
				in++
			}
		})
		next := b.Count(from, piece)
		if _, all := b.Table.Totals(); all.Bytes != counted+in {
			t.Fatalf("%d counted in the places from %d on, want %d", all.Bytes-counted, from, in)
		}
		if counted += in; next == 0 {
			break
		}
		before := b.Len()
		if b.Table.Sweep(from, piece, start.Add(time.Hour)); uint64(before-b.Len()) != in {
			t.Fatalf("%d retired in the places from %d on, want %d", before-b.Len(), from, in)
		}
		from = next
	}
}

// full returns a table with as many connections as it may have. Its slots are shared memory,
// as the kernel's are.
func full(b testing.TB, connections int) *bed {
	b.Helper()
	bed := newBed(new(testing.T), contable.Options{Connections: connections, PerContainer: connections, Idle: time.Hour, Tick: time.Millisecond})
	for i := range connections {
		conn := masqueraded(0)
		conn.Orig.Src = at("172.17.0.2", 1024+i%60000)
		conn.Orig.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i / 60000)}), 443)
		conn.Reply = conn.Orig.Reverse()
		for page, wants := bed.Wants(); wants; page, wants = bed.Wants() {
			shared, err := unix.Mmap(-1, 0, datapath.PageSlots*int(unsafe.Sizeof(datapath.Half{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
			if err != nil {
				b.Fatal(err)
			}
			bed.AddPage(page, unsafe.Slice((*datapath.Half)(unsafe.Pointer(&shared[0])), datapath.PageSlots))
		}
		if _, err := bed.Compose(endOf(7), conn.Orig, conn, start); err != nil {
			b.Fatal(err)
		}
	}
	return bed
}

// The longest time that one piece of the largest table takes.
func BenchmarkPiece(b *testing.B) {
	const connections, piece = 1 << 20, 1 << 12
	bed := full(b, connections)
	for name, walk := range map[string]func(from uint32) uint32{
		"count": func(from uint32) uint32 { return bed.Count(from, piece) },
		"sweep": func(from uint32) uint32 {
			bed.Silent(from, piece, start, func(*contable.Conentry, bool) {})
			return bed.Table.Sweep(from, piece, start)
		},
	} {
		b.Run(name, func(b *testing.B) {
			longest := time.Duration(0)
			for next := uint32(0); b.Loop(); {
				before := time.Now()
				next = walk(next)
				longest = max(longest, time.Since(before))
			}
			b.ReportMetric(float64(longest.Microseconds()), "us-longest")
		})
	}
}

// What a connection takes in a large table: the time to place it, and the daemon's own
// memory, the table's slots aside.
func BenchmarkFull(b *testing.B) {
	const connections = 1 << 20
	for b.Loop() {
		before, began := private(b), time.Now()
		bed := full(b, connections)
		b.ReportMetric(float64(time.Since(began).Nanoseconds())/connections, "ns/connection")
		b.ReportMetric(float64(private(b)-before)/connections, "B/connection")
		runtime.KeepAlive(bed)
	}
}

// private returns the resident bytes of this process that are shared with nobody.
func private(b testing.TB) int {
	b.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	var kb int
	_, after, _ := strings.Cut(string(status), "RssAnon:")
	if _, err := fmt.Sscan(after, &kb); err != nil {
		b.Fatal(err)
	}
	return kb << 10
}
