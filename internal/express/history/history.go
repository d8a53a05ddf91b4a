// Package history keeps what went express and regular in the last hour, of the machine
// and of each container, in bounded memory: 12 bytes a point, 481 points each, at most
// MostContainers containers. It ends with the daemon.
package history

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/api"
)

const (
	// MostContainers have a history of their own, those that are gone included, which give
	// way to others: 6 MB, with names 7 MB.
	MostContainers = 1024
	// coarse is how long a point lasts at least that is older than recentPoints.
	coarse       = 10 * time.Second
	recentPoints = 120
	coarsePoints = 361 // an hour, and the one that grows
	// longestText bounds names.
	longestText = 256
)

// Port is a container's port with its counters.
type Port struct {
	Name, ID, Dev string
	api.Traffic
}

// History belongs to one goroutine.
type History struct {
	recent, coarse times
	machine        series
	living         map[int]*series // by ifindex
	gone           []*series       // the longest gone first
	leftOut        int
}

// times are the last points' ends and lengths. Those of all series are the same.
type times struct {
	n     int // points so far
	last  time.Time
	at    []time.Time // point i is at i % len
	spans []time.Duration
}

func newTimes(points int) times {
	return times{at: make([]time.Time, points), spans: make([]time.Duration, points)}
}

// end ends a point.
func (t *times) end(now time.Time) {
	t.at[t.n%len(t.at)], t.spans[t.n%len(t.at)] = now, now.Sub(t.last)
	t.n++
	t.last = now
}

func (t *times) point(i int) api.Point {
	i %= len(t.at)
	return api.Point{At: t.at[i], Seconds: t.spans[i].Seconds()}
}

// series are the points of the machine or of a container.
type series struct {
	name, id, dev string
	counted       api.Traffic // by the counters, at the last point
	sum           api.Traffic // since the last coarse point
	recent        track[[recentPoints]amount]
	coarse        track[[coarsePoints]amount]
}

// track has the points from one on until another one, as far as the array has room.
type track[A any] struct {
	from, until int
	amounts     A
}

// amount is the traffic of a point. A float has 7 digits.
type amount struct{ packets, bytes, regular float32 }

func amountOf(t api.Traffic) amount {
	return amount{float32(t.ExpressPackets), float32(t.ExpressBytes), float32(t.RegularPackets)}
}

func (a amount) traffic() api.Traffic {
	return api.Traffic{ExpressPackets: uint64(a.packets), ExpressBytes: uint64(a.bytes), RegularPackets: uint64(a.regular)}
}

// New returns a history that begins with the first Add.
func New() *History {
	return &History{recent: newTimes(recentPoints), coarse: newTimes(coarsePoints), living: make(map[int]*series)}
}

// Add ends a point: the counters of the machine and of all ports that there are, by
// ifindex. A counter that is less than before has begun again at zero.
func (h *History) Add(now time.Time, machine api.Traffic, ports map[int]Port) {
	first := h.recent.last.IsZero()
	if first {
		h.recent.last, h.coarse.last, h.machine.counted = now, now, machine
	}
	for index, s := range h.living {
		if p, ok := ports[index]; !ok || s.isOther(p) {
			delete(h.living, index)
			h.gone = append(h.gone, s)
		}
	}
	h.forget()
	full := h.leftOut > 0
	h.leftOut = 0
	for index, p := range ports {
		s := h.living[index]
		if s == nil {
			if s = h.room(); s == nil {
				h.leftOut++
				continue
			}
			s.recent.from, s.coarse.from = h.recent.n, h.coarse.n
			s.recent.until, s.coarse.until = h.recent.n, h.coarse.n
			if first || full {
				s.counted = p.Traffic
			}
			h.living[index] = s
		}
		s.name, s.id, s.dev = clip(p.Name), clip(p.ID), clip(p.Dev)
	}
	if first {
		return
	}
	add := func(s *series, is api.Traffic) {
		more := since(s.counted, is)
		s.counted, s.sum = is, s.sum.Plus(more)
		s.recent.amounts[h.recent.n%recentPoints], s.recent.until = amountOf(more), h.recent.n+1
		s.coarse.amounts[h.coarse.n%coarsePoints] = amountOf(s.sum)
	}
	add(&h.machine, machine)
	for index, s := range h.living {
		add(s, ports[index].Traffic)
	}
	h.recent.end(now)
	if now.Sub(h.coarse.last) < coarse {
		return
	}
	h.coarse.end(now)
	h.machine.endCoarse(h.coarse.n)
	for _, s := range h.living {
		s.endCoarse(h.coarse.n)
	}
	for _, s := range h.gone { // those that went since the last one
		if s.sum != (api.Traffic{}) {
			s.endCoarse(h.coarse.n)
		}
	}
}

func (s *series) endCoarse(n int) { s.sum, s.coarse.until = api.Traffic{}, n }

// isOther reports whether a port is another container's, or again one that was gone.
func (s *series) isOther(p Port) bool { return s.id != "" && p.ID != "" && s.id != clip(p.ID) }

// room returns an empty series, that of the container that is gone for longest if there
// are too many, nil if all of them live.
func (h *History) room() *series {
	if len(h.living)+len(h.gone) < MostContainers {
		return new(series)
	}
	if len(h.gone) == 0 {
		return nil
	}
	s := h.gone[0]
	h.gone = slices.Delete(h.gone, 0, 1)
	*s = series{}
	return s
}

// forget removes containers of which no point is left.
func (h *History) forget() {
	h.gone = slices.DeleteFunc(h.gone, func(s *series) bool {
		return s.recent.until <= h.recent.n-recentPoints && s.coarse.until <= h.coarse.n-coarsePoints && s.sum == (api.Traffic{})
	})
}

func clip(s string) string {
	if len(s) <= longestText {
		return s
	}
	return strings.Clone(s[:longestText]) // without the rest in memory
}

func since(was, is api.Traffic) api.Traffic {
	less := func(was, is uint64) uint64 {
		if is < was {
			return is
		}
		return is - was
	}
	return api.Traffic{
		ExpressPackets: less(was.ExpressPackets, is.ExpressPackets), ExpressBytes: less(was.ExpressBytes, is.ExpressBytes),
		RegularPackets: less(was.RegularPackets, is.RegularPackets),
	}
}

// points calls fn for the machine's points that end after a time, with where a series has
// them: coarse ones as far as the recent ones do not go back.
func (h *History) points(after time.Time, fn func(p api.Point, isRecent bool, i int)) {
	oldest := max(0, h.recent.n-recentPoints)
	var end time.Time // of the coarse ones
	if oldest > 0 {
		begin := h.recent.at[oldest%recentPoints].Add(-h.recent.spans[oldest%recentPoints])
		for i := max(0, h.coarse.n-coarsePoints+1); i < h.coarse.n; i++ {
			p := h.coarse.point(i)
			if !p.At.Add(-h.coarse.spans[i%coarsePoints]).Before(begin) {
				break
			}
			if end = p.At; end.After(after) {
				fn(p, false, i)
			}
		}
	}
	for i := oldest; i < h.recent.n; i++ {
		if p := h.recent.point(i); p.At.After(end) && p.At.After(after) {
			fn(p, true, i)
		}
	}
}

// traffic returns a series' traffic at a point, if it has that.
func (s *series) traffic(isRecent bool, i int) (t api.Traffic, ok bool) {
	if isRecent {
		return s.recent.amounts[i%recentPoints].traffic(), i >= s.recent.from && i < s.recent.until
	}
	return s.coarse.amounts[i%coarsePoints].traffic(), i >= s.coarse.from && i < s.coarse.until
}

// Of returns the points that end after a time: those of the machine, or the sum of those of
// the ports of a container by its name, ID or device.
func (h *History) Of(container string, after time.Time) api.History {
	answer := api.History{Container: container, Points: []api.Point{}, Containers: []api.HistoryContainer{}, LeftOut: h.leftOut}
	var asked []*series
	each := func(s *series, gone bool) {
		if container == "" || container == s.name || container == s.id || container == s.dev {
			asked = append(asked, s)
			answer.Containers = append(answer.Containers, api.HistoryContainer{Name: s.name, ID: s.id, Dev: s.dev, Gone: gone})
		}
	}
	for _, s := range h.living {
		each(s, false)
	}
	for _, s := range h.gone {
		each(s, true)
	}
	h.points(after, func(p api.Point, isRecent bool, i int) {
		known := false
		for at, s := range asked {
			if t, ok := s.traffic(isRecent, i); ok {
				known = true
				c := &answer.Containers[at]
				c.Seconds += p.Seconds
				c.Traffic = c.Traffic.Plus(t)
				p.Traffic = p.Traffic.Plus(t)
			}
		}
		if container == "" {
			p.Traffic, known = h.machine.traffic(isRecent, i)
		}
		if known {
			answer.Points = append(answer.Points, p)
		}
	})
	sort.SliceStable(answer.Containers, func(i, j int) bool {
		a, b := &answer.Containers[i], &answer.Containers[j]
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.ID, b.ID)) < 0
	})
	return answer
}
