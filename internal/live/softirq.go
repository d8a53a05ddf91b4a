package live

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// SavedPerPacket is what an express packet spares the softirqs: their time per packet of a
// container without SCON less that with it, in the medians of softirq_ns_per_packet in
// lab/results/quick.json. Another machine's is another; "scon bench quick" counts it.
const SavedPerPacket = 2216 * time.Nanosecond

// clockTick is the unit of /proc/stat: USER_HZ is 100 on all architectures.
const clockTick = 10 * time.Millisecond

// softirqTime returns the processor time of all softirqs since the machine's start.
func softirqTime() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the time of softirqs: %w", err)
	}
	d, err := parseSoftirq(string(stat))
	if err != nil {
		return 0, fmt.Errorf("read the time of softirqs in /proc/stat: %w", err)
	}
	return d, nil
}

// parseSoftirq reads /proc/stat, whose first line is of all CPUs: "cpu", user, nice,
// system, idle, iowait, irq, softirq.
func parseSoftirq(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, errors.New("no line with the times of all CPUs")
	}
	ticks, err := strconv.ParseInt(fields[7], 10, 64)
	return time.Duration(ticks) * clockTick, err
}
