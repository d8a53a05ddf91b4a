package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// checkRoom returns an error if the table does not fit into the memory that a control group
// of this process allows. The kernel allocates the whole table at once, and may end the
// process on the way rather than refuse.
func checkRoom(slots uint32) error {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil // no control groups
	}
	need := uint64(slots) * uint64(unsafe.Sizeof(Half{})+unsafe.Sizeof(Outer{})+unsafe.Sizeof(uint64(0))/BucketSlots+unsafe.Sizeof(uint64(0)))
	limit, group := memoryLimit("/sys/fs/cgroup", string(groups))
	if need < limit {
		return nil
	}
	return fmt.Errorf("the table takes %d MB, and control group %s allows %d MB; make 'connections' smaller in the settings, or the group's limit larger: %w",
		need>>20, group, limit>>20, unix.ENOMEM)
}

// memoryLimit returns the least limit of the control groups that a process is in and of
// those above, in bytes, and the group that has it. groups is the process's file cgroup,
// root where control groups are mounted.
func memoryLimit(root, groups string) (limit uint64, group string) {
	limit = ^uint64(0)
	for line := range strings.Lines(groups) {
		w := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(w) != 3 {
			continue
		}
		tree, file := root, "memory.max"
		if w[1] == "memory" {
			tree, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		} else if w[1] != "" {
			continue
		}
		for path := filepath.Clean("/" + w[2]); ; path = filepath.Dir(path) {
			text, err := os.ReadFile(filepath.Join(tree, path, file))
			if n, invalid := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && invalid == nil && n < limit { // "max" is none
				limit, group = n, path
			}
			if path == "/" {
				break
			}
		}
	}
	return limit, group
}
