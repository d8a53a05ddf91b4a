package latency

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Cause is a possible cause of a packet's delay.
type Cause int

// The first five are the events that the taps count, in their order.
const (
	Tick       Cause = iota // timer interrupt
	Reschedule              // rescheduling interrupt
	Call                    // function call interrupt
	Device                  // device interrupt
	Squeeze                 // the softirq had used up its time budget
	Softirqd                // ksoftirqd processed the packet
	Moved                   // another CPU processed the packet; no other cause is known then
	causes
)

// causeNames are the names in tables and in JSON.
var causeNames = [causes]string{"tick", "reschedule", "call_function", "device", "time_squeeze", "ksoftirqd", "other_cpu"}

func (c Cause) String() string { return causeNames[c] }

// Causes is a set of causes.
type Causes uint8

// Has reports whether a cause is in the set.
func (s Causes) Has(c Cause) bool { return s&(1<<c) != 0 }

func (s Causes) String() string {
	var names []string
	for c := range causes {
		if s.Has(c) {
			names = append(names, c.String())
		}
	}
	return strings.Join(names, "+")
}

// causesOf returns the causes of a packet that has arrived. softirqd holds the ids
// of the ksoftirqd threads.
func causesOf(x sample, softirqd map[uint32]bool) (s Causes) {
	if x.OutNs == 0 {
		return 0
	}
	if x.InCpu != x.OutCpu {
		return 1 << Moved
	}
	for c, n := range x.Events {
		if Cause(c) == Squeeze && n > 0 {
			n-- // the first is the packet's own softirq
		}
		if n != 0 {
			s |= 1 << c
		}
	}
	if softirqd[x.OutThread] && x.OutThread != x.InThread {
		s |= 1 << Softirqd
	}
	return s
}

// CauseSummary relates a cause to the delays of a run.
type CauseSummary struct {
	// Packets affected by the cause, and the number of them among the slowest
	// thousandth.
	Packets int `json:"packets"`
	Slowest int `json:"slowest"`
	// P50US is their median latency in microseconds.
	P50US float64 `json:"p50_us"`
}

// noCause names the packets without a cause.
const noCause = "none"

// summarizeCauses summarizes, by name, the causes that occurred.
func summarizeCauses(s Samples) map[string]CauseSummary {
	all := s.sorted(latencyNS)
	slow := int64(quantile(all, 0.999))
	summary := map[string]CauseSummary{}
	summarize := func(name string, has func(Causes) bool) {
		var of Samples
		c := CauseSummary{}
		for _, p := range s.Packets {
			if !has(p.Causes) {
				continue
			}
			of.Packets = append(of.Packets, p)
			if p.LatencyNS >= slow {
				c.Slowest++
			}
		}
		if c.Packets = len(of.Packets); c.Packets > 0 {
			c.P50US = quantile(of.sorted(latencyNS), 0.5) / 1000
			summary[name] = c
		}
	}
	for c := range causes {
		summarize(c.String(), func(s Causes) bool { return s.Has(c) })
	}
	summarize(noCause, func(s Causes) bool { return s == 0 })
	return summary
}

// softirqdThreads returns the ids of the kernel's ksoftirqd threads.
func softirqdThreads() map[uint32]bool {
	threads := map[uint32]bool{}
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range files {
		name, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(name), "ksoftirqd/") {
			continue
		}
		if pid, err := strconv.ParseUint(filepath.Base(filepath.Dir(file)), 10, 32); err == nil {
			threads[uint32(pid)] = true
		}
	}
	return threads
}
