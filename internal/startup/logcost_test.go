package startup

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

var costFile = flag.String("stage-log-cost", "", "write to this `file` what the log of stages costs, measured in 30 rounds")

// logCost is the cost of the log of stages. Every list has one value per round.
type logCost struct {
	Machine string `json:"machine"`
	Kernel  string `json:"kernel"`
	// EventNS is the time to log one stage, with both readings of the clock.
	EventNS []float64 `json:"event_ns"`
	// EventCPUNS is its processor time, with that of writing it to a file.
	EventCPUNS []float64 `json:"event_cpu_ns"`
	// AddUS is the time of an ADD by scon-cni from the pool, as the runtime sees it.
	AddUS []float64 `json:"add_us"`
	// StagesPerContainer is the largest number of stages of a container.
	StagesPerContainer int `json:"stages_per_container"`
	// AddPercent is the processor time of a container's stages, relative to the median
	// ADD.
	AddPercent float64 `json:"add_percent"`
}

// The cost of the log of stages is measured; "lab/bench-startup.sh log" records it.
func TestStageLogCost(t *testing.T) {
	rounds := 2
	if *costFile != "" {
		rounds = 30
	}
	c := logCost{StagesPerContainer: len(Stages)}
	c.Machine = fmt.Sprintf("%s, %d CPUs", runtime.GOARCH, runtime.NumCPU())
	c.Kernel = strings.TrimSpace(nstest.Run(t, nstest.New(t), "uname -r"))
	b := newBed(t)
	b.withPool(rounds)
	for i := range rounds {
		wall, cpu := logRound(t)
		c.EventNS, c.EventCPUNS = append(c.EventNS, wall), append(c.EventCPUNS, cpu)
		pod, conf := nstest.New(t), b.conf()
		began := time.Now()
		b.want(b.cni("ADD", fmt.Sprint(i), netns.Path(pod), conf))
		c.AddUS = append(c.AddUS, float64(time.Since(began).Nanoseconds())/1e3)
	}
	if swapped := b.state().HandedOver; netns.HasBeneath() && swapped != uint64(rounds) {
		t.Errorf("%d of %d containers are from the pool", swapped, rounds)
	}
	c.AddPercent = 100 * median(c.EventCPUNS) * float64(c.StagesPerContainer) / 1e3 / median(c.AddUS)
	if c.AddPercent <= 0 {
		t.Errorf("nothing was measured: %+v", c)
	}
	t.Logf("a stage: %.0f ns, with the file %.0f ns of processor time; %d of them %.2f %% of an ADD",
		median(c.EventNS), median(c.EventCPUNS), c.StagesPerContainer, c.AddPercent)
	if *costFile == "" {
		return
	}
	out, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		err = os.WriteFile(*costFile, append(out, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// logRound fills the log of stages, and returns nanoseconds and nanoseconds of processor
// time for each stage.
func logRound(t *testing.T) (wall, cpu float64) {
	t.Helper()
	l, err := openStageLog(filepath.Join(t.TempDir(), "stages"))
	if err != nil {
		t.Fatal(err)
	}
	const container = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	before, began := cpuTime(t), time.Now()
	for range logged {
		at := monotonic()
		l.add(Event{container, StageAddCNI, at, monotonic(), 0})
	}
	wall = float64(time.Since(began).Nanoseconds()) / logged
	l.close()
	return wall, float64(cpuTime(t)-before) / logged
}

// cpuTime returns the processor time of this process, in nanoseconds.
func cpuTime(t *testing.T) int64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
