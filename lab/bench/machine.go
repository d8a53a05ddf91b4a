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

// describeMachine returns the hardware as "MODEL, N CPUs, ARCH".
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

// deviceModel reads the board's name from the device tree; "" without a device
// tree.
func deviceModel(path string) string {
	name, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.TrimRight(string(name), "\x00"))
}

// parseCPUModel returns the first "model name" of /proc/cpuinfo; "" on
// architectures without that line.
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

// kernelRelease returns the output of uname -r.
func kernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// TwoCPUs returns the CPUs for the two ends of a run: the first and the last CPU
// that this process may use. They are the same if it may use only one.
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
