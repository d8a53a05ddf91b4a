package history_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/history"
)

var start = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func traffic(n int) api.Traffic {
	return api.Traffic{ExpressPackets: uint64(10 * n), ExpressBytes: uint64(1000 * n), RegularPackets: uint64(n)}
}

func port(n, packets int) history.Port {
	return history.Port{Name: fmt.Sprint("c", n), ID: fmt.Sprint("id", n), Dev: fmt.Sprint("veth", n), Traffic: traffic(packets)}
}

// Two hours of a point a second: the last hour at least is known without gaps, the last
// two minutes by the second.
func TestHour(t *testing.T) {
	t.Parallel()
	h := history.New()
	for i := range 7200 {
		h.Add(start.Add(time.Duration(i)*time.Second), traffic(1000+3*i), map[int]history.Port{7: port(1, 50+2*i)})
	}
	for container, rate := range map[string]uint64{"": 3, "c1": 2, "id1": 2, "veth1": 2} {
		a := h.Of(container, time.Time{})
		if span := a.Points[len(a.Points)-1].At.Sub(a.Points[0].At); span < time.Hour-10*time.Second {
			t.Errorf("%q: points of %v", container, span)
		}
		seconds, recent := 0.0, 0
		for i, p := range a.Points {
			if want := uint64(p.Seconds) * rate; p.RegularPackets != want || p.ExpressPackets != 10*want || p.ExpressBytes != 1000*want {
				t.Fatalf("%q: point %+v, want %d regular packets", container, p, want)
			}
			if i > 0 && p.At.Add(-time.Duration(p.Seconds*float64(time.Second))) != a.Points[i-1].At {
				t.Fatalf("%q: a gap before %+v", container, p)
			}
			seconds += p.Seconds
			if p.Seconds == 1 {
				recent++
			}
		}
		if recent < 110 || seconds < 3600 {
			t.Errorf("%q: %d points of a second, %v s in all", container, recent, seconds)
		}
		if s, sum := a.Sum(); s != seconds || sum.RegularPackets != rate*uint64(seconds) || len(a.Containers) != 1 || a.Containers[0].RegularPackets != 2*uint64(seconds) {
			t.Errorf("%q: %v s, sum %+v, containers %+v", container, s, sum, a.Containers)
		}
	}
	last := start.Add(7199 * time.Second)
	if a := h.Of("", last.Add(-time.Minute)); len(a.Points) != 60 || a.Points[59].At != last {
		t.Errorf("%d points of the last minute", len(a.Points))
	}
	if a := h.Of("", last); len(a.Points) != 0 {
		t.Errorf("points after the last one: %v", a.Points)
	}
}

// A container has points from when it came until it went, and its packets are kept as long
// as any other's. What another one at the same ifindex sends is not its own.
func TestComeAndGo(t *testing.T) {
	t.Parallel()
	h := history.New()
	now := start
	add := func(ports map[int]history.Port) { h.Add(now, api.Traffic{}, ports); now = now.Add(time.Second) }
	add(map[int]history.Port{7: port(1, 5)}) // before the first point
	for i := range 10 {
		add(map[int]history.Port{7: port(1, 6+i)})
	}
	add(map[int]history.Port{7: port(2, 4)}) // began at zero
	add(map[int]history.Port{7: port(2, 3)}) // and again
	add(nil)
	want := func(container string, gone bool, seconds float64, packets uint64) {
		t.Helper()
		a := h.Of(container, time.Time{})
		if len(a.Containers) != 1 || a.Containers[0].Gone != gone || a.Containers[0].Seconds != seconds || a.Containers[0].RegularPackets != packets {
			t.Errorf("%s after %v: %+v", container, now.Sub(start), a.Containers)
		}
	}
	want("c1", true, 10, 10)
	want("c2", true, 2, 7)
	for range 1000 {
		add(nil)
	}
	want("c1", true, 10, 10) // the point of 10 s
	for range 3000 {
		add(nil)
	}
	if a := h.Of("", time.Time{}); len(a.Containers) != 0 {
		t.Errorf("after more than an hour: %+v", a.Containers)
	}
}

// While nothing goes express points are longer; after a pause of the daemon there is one
// as long as that.
func TestLongPoints(t *testing.T) {
	t.Parallel()
	h := history.New()
	for i, at := range []int{0, 1, 2, 11, 21, 31} {
		h.Add(start.Add(time.Duration(at)*time.Second), traffic(at), map[int]history.Port{7: port(1, i)})
	}
	var spans []float64
	for _, p := range h.Of("", time.Time{}).Points {
		spans = append(spans, p.Seconds)
		if p.RegularPackets != uint64(p.Seconds) {
			t.Errorf("%+v", p)
		}
	}
	if fmt.Sprint(spans) != "[1 1 9 10 10]" {
		t.Error(spans)
	}
}

// A thousand containers that come and go each second, all with names as long as they
// like, take no more memory than the bound; the machine's packets stay complete, and a
// container that lives keeps its history.
func TestBound(t *testing.T) {
	h := history.New()
	const most = 8 << 20
	before, peak := heap(), uint64(0)
	sum := 0
	for second := range 60 {
		ports := map[int]history.Port{1: port(1, second)}
		for i := range 1000 {
			n := 1000*second + i
			p := port(n, 5)
			p.Name, p.ID = strings.Repeat("n", 10000)+p.Name, strings.Repeat("i", 10000)+p.ID
			p.ID = fmt.Sprint(n, p.ID)
			ports[100+i] = p
		}
		sum += 1000 * 5
		h.Add(start.Add(time.Duration(second)*time.Second), traffic(sum), ports)
		if second%10 == 9 {
			peak = max(peak, heap()-before)
		}
	}
	t.Logf("%d bytes", peak)
	if peak > most {
		t.Errorf("takes %d bytes, want %d at most", peak, most)
	}
	a := h.Of("", time.Time{})
	if len(a.Containers) > history.MostContainers {
		t.Errorf("%d containers, want %d at most", len(a.Containers), history.MostContainers)
	}
	if _, all := a.Sum(); math.Abs(float64(all.RegularPackets)-float64(sum-5000)) > 1 {
		t.Errorf("the machine has %d packets, want %d", all.RegularPackets, sum-5000)
	}
	if a := h.Of("c1", time.Time{}); len(a.Containers) != 1 || a.Containers[0].RegularPackets != 59 {
		t.Errorf("the container that lives: %+v", a.Containers)
	}
}

// More living containers than the bound: those that came first keep theirs, and it is said
// how many have none.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	h := history.New()
	ports := make(map[int]history.Port)
	for i := range history.MostContainers + 76 {
		ports[i] = port(i, 1)
	}
	for i := range 3 {
		h.Add(start.Add(time.Duration(i)*time.Second), traffic(i), ports)
	}
	if a := h.Of("", time.Time{}); a.LeftOut != 76 || len(a.Containers) != history.MostContainers {
		t.Errorf("%d left out, %d containers", a.LeftOut, len(a.Containers))
	}
}

// heap returns the bytes of living objects.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkOf reads a full history; the loop does nothing else meanwhile.
func BenchmarkOf(b *testing.B) {
	h := history.New()
	ports := make(map[int]history.Port)
	for i := range history.MostContainers {
		ports[i] = port(i, i)
	}
	for i := range 4000 {
		h.Add(start.Add(time.Duration(i)*time.Second), traffic(i), ports)
	}
	for b.Loop() {
		h.Of("", time.Time{})
	}
}

// BenchmarkAdd is a second's work for 100 containers.
func BenchmarkAdd(b *testing.B) {
	h := history.New()
	ports := make(map[int]history.Port)
	for i := range 100 {
		ports[i] = port(i, i)
	}
	for i := range b.N {
		h.Add(start.Add(time.Duration(i)*time.Second), traffic(i), ports)
	}
}
