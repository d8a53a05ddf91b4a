package metrics

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The names that all exporters use.
var (
	cpuTime   = Counter("process_cpu_seconds_total", "User and system CPU time of the process.")
	memory    = Gauge("process_resident_memory_bytes", "Resident memory of the process; of express, the table of Conentries included.")
	openFiles = Gauge("process_open_fds", "Open file descriptors of the process.")
	startTime = Gauge("process_start_time_seconds", "When the service started, since 1970.")
)

// CPUSeconds returns the user and system CPU time of this process.
func CPUSeconds() (float64, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read the process's CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds(), nil
}

// Process adds the metrics of the process, common to all services.
func (p Page) Process(started time.Time) error {
	cpu, err := CPUSeconds()
	if err != nil {
		return err
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
	p.Put(cpuTime, cpu)
	p.Put(memory, float64(resident*os.Getpagesize()))
	p.Put(openFiles, float64(len(files)-1)) // without the directory itself
	p.Put(startTime, float64(started.UnixMilli())/1000)
	return nil
}
