package latency

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/lab/bench"
)

// clock is a clock that the test advances.
type clock struct{ now int64 }

func (c *clock) read() int64 { c.now += 10; return c.now }

func TestScheduleIsKept(t *testing.T) {
	s := Schedule{Start: 1000, Rate: 1e6, Packets: 5000} // one per 1000 ns
	for _, tc := range []struct {
		name string
		// stall is the duration of the call that sends packet 100.
		stall            int64
		skipped, delayed int
	}{
		{"quiet", 0, 0, 0},
		{"a stall that the backlog holds", 500_000, 0, 500},
		{"a longer one", 3_000_000, 2000, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &clock{}
			var numbers []uint32
			delayed := 0
			r, err := s.run(c.read, func(number uint32) error {
				if c.now < s.Due(number) {
					t.Fatalf("packet %d was sent at %d, before %d", number, c.now, s.Due(number))
				}
				if c.now > s.Due(number)+1000 {
					delayed++
				}
				numbers = append(numbers, number)
				if number == 100 {
					c.now += tc.stall
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.IsSorted(numbers) || numbers[0] != 0 || numbers[len(numbers)-1] != s.Packets-1 {
				t.Errorf("numbers from %d to %d", numbers[0], numbers[len(numbers)-1])
			}
			if r.Sent+r.Skipped != s.Packets || int(r.Sent) != len(numbers) {
				t.Errorf("%+v of %d packets, %d were sent", r, s.Packets, len(numbers))
			}
			if n := int(r.Skipped); n < tc.skipped || n > tc.skipped*102/100 {
				t.Errorf("%d skipped, want %d", n, tc.skipped)
			}
			// Each send takes about 10 ns by itself.
			if delayed < tc.delayed*99/100 || delayed > tc.delayed*103/100 {
				t.Errorf("%d were delayed, want about %d", delayed, tc.delayed)
			}
			if r.Behind > backlog*1000+20 {
				t.Errorf("behind by %d ns", r.Behind)
			}
		})
	}
}

func TestScheduleEndsWithTheFirstError(t *testing.T) {
	wrong := errors.New("wrong")
	r, err := (Schedule{Rate: 1e6, Packets: 10}).run((&clock{}).read, func(number uint32) error {
		if number == 3 {
			return wrong
		}
		return nil
	})
	if !errors.Is(err, wrong) || r.Sent != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNewSchedule(t *testing.T) {
	s := newSchedule(17300, 3*time.Second)
	s.Start = 5
	if s.Packets != 51900 || s.Due(0) != 5 || s.Due(17300) != 1e9+5 {
		t.Errorf("%+v, due %d, %d", s, s.Due(0), s.Due(17300))
	}
}

// at returns the sample of a packet on CPU 0 between two times.
func at(in, out uint64) sample { return sample{InNs: in, OutNs: out} }

func latencies(s Samples) (all []int64) {
	for _, p := range s.Packets {
		all = append(all, p.LatencyNS)
	}
	return all
}

func TestEvaluate(t *testing.T) {
	s := Schedule{Start: 1000, Rate: 1e7, Packets: 5} // due at 1000, 1100, ...
	for _, tc := range []struct {
		name string
		raw  []sample
		want []int64
	}{
		{"on time", []sample{at(1000, 1050), at(1100, 1150)}, []int64{50, 50}},
		{"a generator that is late", []sample{at(1030, 1080), at(1190, 1240), at(1245, 1295)}, []int64{50, 50, 50}},
		{"packets wait for one that was held up", []sample{at(1000, 1250), at(1260, 1310), at(1320, 1370), at(1380, 1430)},
			[]int64{250, 200, 150, 100}},
		{"a line that takes several at a time", []sample{at(1000, 1500), at(1100, 1600), at(1200, 1700)}, []int64{500, 500, 500}},
		{"a line too slow", []sample{at(1000, 1150), at(1200, 1350), at(1400, 1550)}, []int64{150, 200, 250}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := evaluate(s, sent{Sent: uint32(len(tc.raw))}, tc.raw, nil)
			if !slices.Equal(latencies(got), tc.want) {
				t.Errorf("latencies %v, want %v", latencies(got), tc.want)
			}
			if got.Lost+got.Untapped+got.Skipped+got.Overtaken != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Packets that wait for a delayed packet have its causes.
func TestWaitingPacketsHaveTheCauses(t *testing.T) {
	s := Schedule{Start: 1000, Rate: 1e7, Packets: 5}
	raw := []sample{at(1000, 1150), at(1200, 1250), at(1300, 1320), at(1340, 1360)}
	raw[0].Events[Tick] = 1
	raw[1].Events[Call] = 1
	var got []string
	for _, p := range evaluate(s, sent{Sent: 4}, raw, nil).Packets {
		got = append(got, p.Causes.String())
	}
	// The second packet is complete 200 ns after the start, when the third becomes
	// due.
	if want := []string{"tick", "tick+call_function", "", ""}; !slices.Equal(got, want) {
		t.Errorf("causes %q, want %q", got, want)
	}
}

func TestFindings(t *testing.T) {
	r := result(t)
	r.Details["n8"].Curve = &Curve{LossFree: 2000}
	table := findingsTable(map[string]*Result{paced: r, fullCore: r, fullNone: r})
	for _, want := range []string{"n1 1.5 us, n2 2 us, n8 5 us", "n8 1.00 times", "n1 7 us"} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
	if empty := findingsTable(nil); strings.Count(empty, "| - ") != len(findings) {
		t.Errorf("without results\n%s", empty)
	}
}

func TestEvaluateCounts(t *testing.T) {
	s := Schedule{Start: 1000, Rate: 1e7, Packets: 6}
	raw := []sample{at(1000, 1900), at(1100, 1200), at(1200, 0), {}, at(1400, 2000), {}}
	got := evaluate(s, sent{Sent: 5, Skipped: 1}, raw, nil)
	if got.Lost != 1 || got.Untapped != 1 || got.Skipped != 1 || got.Overtaken != 1 || len(got.Packets) != 3 {
		t.Errorf("%+v", got)
	}
	if loss := got.loss(); loss != 0.5 {
		t.Errorf("loss %v", loss)
	}
}

func TestQuantile(t *testing.T) {
	var hundred []int64
	for i := range int64(1000) {
		hundred = append(hundred, i+1)
	}
	for p, want := range map[float64]float64{0: 1, 0.5: 500, 0.99: 990, 0.999: 999, 1: 1000} {
		if got := quantile(hundred, p); got != want {
			t.Errorf("quantile %v is %v, want %v", p, got, want)
		}
	}
	if !math.IsNaN(quantile(nil, 0.5)) {
		t.Error("no values have a quantile")
	}
	if got := quantile([]int64{7}, 0.999); got != 7 {
		t.Errorf("of one: %v", got)
	}
}

// thousand returns a thousand packets of 1 us each, except for the slow ones.
func thousand(slow ...int64) Samples {
	s := Samples{Schedule: Schedule{Rate: 1000, Packets: 1000}}
	for i := range uint32(1000) {
		p := Packet{Number: i, DueNS: int64(i) * 1e6, InNS: int64(i) * 1e6, OutNS: int64(i)*1e6 + 1000, LatencyNS: 1000}
		if int(i) < len(slow) {
			p.LatencyNS = slow[i]
		}
		s.Packets = append(s.Packets, p)
	}
	return s
}

func TestValues(t *testing.T) {
	v := thousand(5000, 9000).values()
	want := map[string]float64{"p50_us": 1, "p99_us": 1, "p999_us": 5, "max_us": 9, "lost": 0, "skipped": 0,
		"rate_pps": 1000, "wire_p50_us": 1, "wire_p999_us": 1}
	for name, w := range want {
		if v[name] != w {
			t.Errorf("%s is %v, want %v", name, v[name], w)
		}
	}
	if len(v) != len(want) || len(v) != len(Metrics) {
		t.Errorf("values %v", v)
	}
	if v := (Samples{Lost: 3}).values(); v["lost"] != 3 || len(v) != 3 {
		t.Errorf("values of nothing %v", v)
	}
}

func TestDistribution(t *testing.T) {
	d := distribution(thousand(5000, 9000))
	if d[0] != (Percentile{0, 1}) || d[len(d)-1] != (Percentile{1, 9}) || len(d) != 32 {
		t.Errorf("%d: %v", len(d), d)
	}
	if distribution(Samples{}) != nil {
		t.Error("nothing has a distribution")
	}
}

func TestWorst(t *testing.T) {
	s := thousand(5000, 1000, 9000)
	w := s.worst(2)
	if len(w) != 2 || w[0].Number != 0 || w[1].Number != 2 {
		t.Errorf("%+v", w)
	}
	if n := len(s.worst(5000)); n != 1000 {
		t.Errorf("%d packets", n)
	}
}

func TestCauses(t *testing.T) {
	softirqd := map[uint32]bool{15: true}
	with := func(x sample, events ...uint32) sample {
		x.OutNs = 1
		copy(x.Events[:], events)
		return x
	}
	for _, tc := range []struct {
		x    sample
		want string
	}{
		{with(sample{}), ""},
		{with(sample{}, 0, 0, 0, 0, 1), ""}, // its own softirq
		{with(sample{}, 1, 0, 2, 0, 1), "tick+call_function"},
		{with(sample{}, 0, 1, 0, 3, 2), "reschedule+device+time_squeeze"},
		{with(sample{InThread: 7, OutThread: 15}), "ksoftirqd"},
		{with(sample{InThread: 15, OutThread: 15}), ""},
		{with(sample{InThread: 7, OutThread: 8}), ""},
		{with(sample{OutCpu: 1}, 1, 1, 1, 1, 1), "other_cpu"},
		{sample{}, ""},
	} {
		if got := causesOf(tc.x, softirqd).String(); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.x, got, tc.want)
		}
	}
}

func TestSummarizeCauses(t *testing.T) {
	s := thousand(5000, 9000)
	s.Packets[1].Causes = 1<<Tick | 1<<Device
	s.Packets[2].Causes = 1 << Tick
	got := summarizeCauses(s)
	if got["tick"] != (CauseSummary{2, 1, 1}) || got["device"] != (CauseSummary{1, 1, 9}) ||
		got["none"] != (CauseSummary{998, 1, 1}) || len(got) != 3 {
		t.Errorf("%+v", got)
	}
}

func TestRamp(t *testing.T) {
	for _, tc := range []struct {
		name     string
		capacity float64 // packets per second
		flaky    int     // every n-th attempt loses something; 0 means none
	}{
		{"steady", 123_456, 0},
		{"steady and slow", 1500, 0},
		{"sometimes disturbed", 123_456, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			calls := 0
			c, err := ramp(t.Context(), func(_ context.Context, rate float64) (float64, error) {
				calls++
				if tc.flaky > 0 && calls%tc.flaky == 0 {
					return 0.01, nil
				}
				return max(0, 1-tc.capacity/rate), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if c.LossFree > tc.capacity || c.LossFree < tc.capacity*(1-2*precision) {
				t.Errorf("no loss up to %v, want %v", c.LossFree, tc.capacity)
			}
			if !slices.IsSortedFunc(c.Points, func(a, b Point) int { return int(a.Rate - b.Rate) }) {
				t.Errorf("points %v", c.Points)
			}
			if last := c.Points[len(c.Points)-1]; last.Loss <= beyond {
				t.Errorf("the curve ends at %+v", last)
			}
			for _, p := range c.Points {
				if (p.Loss == 0) != (p.Rate <= tc.capacity) {
					t.Errorf("%+v", p)
				}
			}
			if calls > 150 {
				t.Errorf("%d attempts", calls)
			}
		})
	}
}

func TestRampWithoutGoodRate(t *testing.T) {
	c, err := ramp(t.Context(), func(context.Context, float64) (float64, error) { return 0.1, nil })
	if err != nil || c.LossFree != 0 || len(c.Points) == 0 {
		t.Errorf("%+v, %v", c, err)
	}
	wrong := errors.New("wrong")
	if _, err := ramp(t.Context(), func(context.Context, float64) (float64, error) { return 0, wrong }); !errors.Is(err, wrong) {
		t.Errorf("error %v", err)
	}
}

// result returns lines with medians of 1 us plus half a us per node.
func result(t *testing.T) *Result {
	t.Helper()
	r := &Result{Result: &bench.Result{Experiment: experiment, Modes: map[string]map[string][]float64{}},
		Line: Routed, Details: map[string]*Mode{}}
	for _, nodes := range []int{1, 2, 8} {
		name := modeName(nodes)
		r.Order = append(r.Order, name)
		r.Details[name] = &Mode{Nodes: nodes}
		for round := range 3 {
			s := thousand(int64(5000 + 1000*round))
			for i := range s.Packets[1:] {
				s.Packets[i+1].LatencyNS = int64(1000 + 500*nodes)
			}
			if worst := r.add(name, round+1, s, answer{}, nil); !worst {
				t.Errorf("round %d is not the worst so far", round+1)
			}
		}
		if worst := r.add(name, 4, thousand(), answer{}, nil); worst {
			t.Error("a better round is the worst")
		}
	}
	r.summarize()
	return r
}

func TestResultKeepsTheWorstRound(t *testing.T) {
	r := result(t)
	d := r.Details["n8"]
	if d.Worst != 3 || d.Distribution[len(d.Distribution)-1].US != 7 || len(d.Rounds) != 4 {
		t.Errorf("%+v", d)
	}
	if us, ok := r.PerNode(""); !ok || math.Abs(us-0.5) > 1e-9 {
		t.Errorf("%v us for a node, %v", us, ok)
	}
	if _, ok := r.PerNode(expressSuffix); ok {
		t.Error("there are no modes with SCON")
	}
}
