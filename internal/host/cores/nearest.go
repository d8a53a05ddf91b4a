package cores

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Nearest returns one processor of each set: two that share their last-level
// cache if there are such, otherwise two different ones if possible.
func Nearest(a, b *unix.CPUSet) (int, int) { return nearest(members(a), members(b), groups()) }

func nearest(as, bs []int, group map[int]string) (int, int) {
	if len(as) == 0 || len(bs) == 0 {
		return 0, 0
	}
	in := make(map[string][]int) // the first two of a group
	for _, a := range as {
		if g := group[a]; g != "" && len(in[g]) < 2 {
			in[g] = append(in[g], a)
		}
	}
	for _, b := range bs {
		for _, a := range in[group[b]] {
			if a != b {
				return a, b
			}
		}
	}
	for _, b := range bs {
		for _, a := range as[:min(2, len(as))] {
			if a != b {
				return a, b
			}
		}
	}
	return as[0], bs[0]
}

func members(set *unix.CPUSet) (all []int) {
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all
}

// groups returns the processors that share the last-level cache, for each
// processor, from sysfs.
var groups = sync.OnceValue(func() map[int]string { return lastCaches(os.DirFS("/sys/devices/system/cpu")) })

func lastCaches(cpus fs.FS) map[int]string {
	all := make(map[int]string)
	dirs, err := fs.Glob(cpus, "cpu[0-9]*")
	if err != nil {
		return all
	}
	for _, dir := range dirs {
		cpu, err := strconv.Atoi(strings.TrimPrefix(dir, "cpu"))
		if err != nil {
			continue
		}
		highest := 0
		for i := 0; ; i++ {
			level, err := number(cpus, fmt.Sprintf("%s/cache/index%d/level", dir, i))
			if err != nil {
				break
			}
			shared, err := fs.ReadFile(cpus, fmt.Sprintf("%s/cache/index%d/shared_cpu_list", dir, i))
			if err == nil && level > highest {
				highest, all[cpu] = level, strings.TrimSpace(string(shared))
			}
		}
	}
	return all
}

func number(from fs.FS, path string) (int, error) {
	content, err := fs.ReadFile(from, path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}
