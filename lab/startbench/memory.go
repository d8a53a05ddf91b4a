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

// kernelLines are the lines of /proc/meminfo that add up to the kernel's memory.
var kernelLines = []string{"Slab", "KernelStack", "PageTables", "Percpu"}

// kernelMemory returns the machine's kernel memory in KiB.
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
