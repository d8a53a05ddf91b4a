package startup

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/metrics"
)

// Stage is a step of a container's start (Understanding Network Startup for Secure
// Containers, section 4.1.1).
type Stage string

// The stages, in order.
const (
	StageNetNS    Stage = "netns"     // making a network namespace
	StageAddCNI   Stage = "add_cni"   // all of a CNI ADD
	StageCgroup   Stage = "cgroup"    // the runtime's create
	StageAttachIf Stage = "attach_if" // making a device
	StageStartVM  Stage = "start_vm"  // the runtime's start
)

// Stages lists all stages in order.
var Stages = []Stage{StageNetNS, StageAddCNI, StageCgroup, StageAttachIf, StageStartVM}

// Event is one stage of one container. Times are those of CLOCK_MONOTONIC in
// nanoseconds, comparable with other processes.
type Event struct {
	Container string `json:"container"`
	Stage     Stage  `json:"stage"`
	BeginNS   int64  `json:"begin_ns"`
	EndNS     int64  `json:"end_ns"`
	// WaitNS is the time spent waiting for admission.
	WaitNS int64 `json:"wait_ns"`
}

// stages are those that containers are in, and those that they have left.
type stages struct {
	*gates
	*stageLog
}

// begin enters a stage for a container when it is admitted; end leaves it. A namespace for the
// pool, "", is in none.
func (s stages) begin(stage Stage, container string) (end func()) {
	if container == "" {
		return func() {}
	}
	began := monotonic()
	waited := s.enter(stage, container)
	return func() {
		s.leave(stage, container)
		s.add(Event{container, stage, began, monotonic(), waited.Nanoseconds()})
	}
}

// logged is the number of events in memory: enough for five stages of 3,000
// containers.
const logged = 1 << 14

// stageLog keeps events in a ring in memory and writes them to a file later.
type stageLog struct {
	mu    sync.Mutex
	ring  []Event // grows to logged
	next  uint64  // number of the next event
	ended map[Stage]metrics.Times

	file    io.WriteCloser // nil without a file
	written uint64
	stop    chan struct{}
	done    sync.WaitGroup
}

// openStageLog opens a log that also writes to a file, unless path is "".
func openStageLog(path string) (*stageLog, error) {
	l := &stageLog{ended: make(map[Stage]metrics.Times), stop: make(chan struct{})}
	if path == "" {
		return l, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open the log of stages: %w", err)
	}
	l.file = f
	l.done.Go(l.writer)
	return l, nil
}

func (l *stageLog) close() {
	close(l.stop)
	l.done.Wait()
}

// add logs a finished stage.
func (l *stageLog) add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < logged {
		l.ring = append(l.ring, e)
	} else {
		l.ring[l.next%logged] = e
	}
	l.next++
	times := l.ended[e.Stage]
	times.Add(time.Duration(e.EndNS - e.BeginNS))
	l.ended[e.Stage] = times
}

// since returns the events in memory from a number on, and the number of the next one.
func (l *stageLog) since(from uint64) (events []Event, next uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next > logged {
		from = max(from, l.next-logged)
	}
	for i := from; i < l.next; i++ {
		events = append(events, l.ring[i%logged])
	}
	return events, l.next
}

// times returns how long the containers that have left each stage took.
func (l *stageLog) times() map[Stage]metrics.Times {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.ended)
}

// writer appends new events to the file once a second.
func (l *stageLog) writer() {
	defer l.file.Close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-l.stop:
			last = true
		}
		var events []Event
		events, l.written = l.since(l.written)
		w := bufio.NewWriter(l.file)
		enc := json.NewEncoder(w)
		for _, e := range events {
			_ = enc.Encode(e)
		}
		if w.Flush() != nil {
			return // a full disk stops no container
		}
	}
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail
	return ts.Nano()
}
