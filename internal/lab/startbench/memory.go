package startbench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// kernelLines of /proc/meminfo make up what the kernel holds for itself.
var kernelLines = []string{"Slab", "KernelStack", "PageTables", "Percpu"}

// kernelMemory of the machine, in KiB.
func kernelMemory() (int, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return parseKernelMemory(f)
}

func parseKernelMemory(r io.Reader) (total int, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if !slices.Contains(kernelLines, name) {
			continue
		}
		kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(value, "kB")))
		if err != nil {
			return 0, fmt.Errorf("read %s of /proc/meminfo: %w", name, err)
		}
		total += kib
	}
	return total, lines.Err()
}
