package contention

import (
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// HerePIDs makes the programs of a collection that watch a process know it by its PID in
// this process's PID namespace (lab/bpf/watched.h).
func HerePIDs(spec *ebpf.CollectionSpec) error {
	const file = "/proc/self/ns/pid"
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	for name, value := range map[string]uint64{"pid_namespace_dev": st.Dev, "pid_namespace_ino": st.Ino} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}
