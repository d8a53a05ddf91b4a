package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkRoom returns an error that wraps ENOMEM if a control group of this process does not
// allow that many bytes more. The kernel may end the process where it allocates rather than
// refuse.
func checkRoom(need uint64) error {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil // no control groups
	}
	room, group := memoryRoom("/sys/fs/cgroup", string(groups))
	if need < room {
		return nil
	}
	return fmt.Errorf("%d KB more are needed, and control group %s allows %d KB; make 'connections' smaller in the settings, or the group's limit larger: %w",
		need>>10, group, room>>10, unix.ENOMEM)
}

// memoryRoom returns the least that the control groups that a process is in, and those
// above, still allow, in bytes, and the group that has it. groups is the process's file
// cgroup, root where control groups are mounted.
func memoryRoom(root, groups string) (room uint64, group string) {
	room = ^uint64(0)
	for line := range strings.Lines(groups) {
		w := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(w) != 3 {
			continue
		}
		tree, files := root, [...]string{"memory.max", "memory.current", "inactive_file"}
		if w[1] == "memory" {
			tree, files = filepath.Join(root, "memory"), [...]string{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
		} else if w[1] != "" {
			continue
		}
		for path := filepath.Clean("/" + w[2]); ; path = filepath.Dir(path) {
			dir := filepath.Join(tree, path)
			if limit, limited := number(dir, files[0]); limited { // "max" is none
				used, _ := number(dir, files[1])
				used -= min(used, reclaimable(dir, files[2]))
				if left := limit - min(limit, used); left < room {
					room, group = left, path
				}
			}
			if path == "/" {
				break
			}
		}
	}
	return room, group
}

// number reads a file of a control group that holds one.
func number(dir, file string) (n uint64, ok bool) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// reclaimable returns what a control group has of files that nobody has used of late: the
// kernel takes that back.
func reclaimable(dir, key string) uint64 {
	text, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}
