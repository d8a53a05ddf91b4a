package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// describeMachine names the hardware: "MODEL, N CPUs, ARCH".
func describeMachine() string {
	model := deviceModel("/proc/device-tree/model")
	if model == "" {
		if f, err := os.Open("/proc/cpuinfo"); err == nil {
			model = parseCPUModel(f)
			f.Close()
		}
	}
	if model == "" {
		model = "unknown model"
	}
	return fmt.Sprintf("%s, %d CPUs, %s", model, runtime.NumCPU(), runtime.GOARCH)
}

// deviceModel reads the name that a device tree gives the board, "" where there
// is no device tree.
func deviceModel(path string) string {
	name, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.TrimRight(string(name), "\x00"))
}

// parseCPUModel reads the first "model name" of /proc/cpuinfo, "" where the
// architecture writes none.
func parseCPUModel(r io.Reader) string {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// TwoCPUs picks where the two ends of a run go: the first and the last CPU that
// this process may use, which are the same where it may use only one.
func TwoCPUs() (first, last int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, 0, fmt.Errorf("read the allowed CPUs: %w", err)
	}
	first = -1
	for cpu := range len(set) * 64 {
		if !set.IsSet(cpu) {
			continue
		}
		if first < 0 {
			first = cpu
		}
		last = cpu
	}
	return first, last, nil
}
