package metrics

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// As every exporter names them.
var (
	cpuTime   = counter("process_cpu_seconds_total", "User and system CPU time of the daemon.")
	memory    = gauge("process_resident_memory_bytes", "Memory of the daemon, the table of Conentries included.")
	openFiles = gauge("process_open_fds", "Open file descriptors of the daemon.")
	startTime = gauge("process_start_time_seconds", "When the daemon started, since 1970.")
)

func (p page) process(started time.Time) error {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return fmt.Errorf("read the process's CPU time: %w", err)
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("read the process's memory: %w", err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return fmt.Errorf("read the process's memory: %q: %w", statm, err)
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("count open files: %w", err)
	}
	p.put(cpuTime, time.Duration(usage.Utime.Nano()+usage.Stime.Nano()).Seconds())
	p.put(memory, float64(resident*os.Getpagesize()))
	p.put(openFiles, float64(len(files)-1)) // one of them lists
	p.put(startTime, float64(started.UnixMilli())/1000)
	return nil
}
