package startup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"github.com/scon-project/scon/internal/host/bpfload"
)

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type inhabitant inhabitants bpf/inhabitants.bpf.c

// census knows which network namespaces contain processes. A process counts only if
// all its threads are there, since a CNI plugin enters a namespace with one thread
// for a moment. One pass covers all processes and serves all callers of that time.
// A kernel iterator takes microseconds; /proc replaces it where the kernel has no
// BTF.
type census struct {
	iter *link.Iter // nil: read /proc

	mu    sync.Mutex
	taken time.Time
	users map[uint32]int  // one process of each namespace, by inode
	any   map[uint32]bool // namespaces with a thread; set by the iterator only
}

// newCensus opens the iterator if the kernel supports it.
func newCensus(log *slog.Logger) *census {
	c := new(census)
	var objs inhabitantsObjects
	spec, err := loadInhabitants()
	if err == nil {
		err = rlimit.RemoveMemlock()
	}
	if err == nil {
		err = bpfload.LoadAndAssign(spec, &objs, nil)
	}
	if err == nil {
		c.iter, err = link.AttachIter(link.IterOptions{Program: objs.Inhabitants})
		err = errors.Join(err, objs.Close()) // the link holds it
	}
	if err != nil {
		log.Info("no task iterator: processes are listed from /proc, which takes longer", "error", err)
	}
	return c
}

func (c *census) close() {
	if c.iter != nil {
		c.iter.Close()
	}
}

// user returns a process in a namespace that cannot be entered since the given time,
// 0 if there is none.
func (c *census) user(inode uint64, since time.Time) (pid int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.taken.After(since) {
		if err := c.take(); err != nil {
			return 0, err
		}
	}
	if pid = c.users[uint32(inode)]; c.iter == nil && !isWhole(pid, uint32(inode)) {
		return 0, nil
	}
	return pid, nil
}

// isFree reports whether no process is in a namespace that cannot be entered since the given
// time, as far as is known.
func (c *census) isFree(inode uint64, since time.Time) bool {
	pid, err := c.user(inode, since)
	return err == nil && pid == 0
}

// isDeserted reports whether no thread of any process is in a namespace.
func (c *census) isDeserted(inode uint64) (bool, error) {
	if c.iter == nil {
		return !slices.Contains(threads("/proc/[0-9]*"), uint32(inode)), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.take()
	return err == nil && !c.any[uint32(inode)], err
}

func (c *census) take() (err error) {
	began := now()
	users := make(map[uint32]int)
	if c.iter != nil {
		err = c.iterate(users)
	} else {
		err = readProcesses(users)
	}
	if err != nil {
		return fmt.Errorf("list all processes: %w", err)
	}
	c.users, c.taken = users, began
	return nil
}

func (c *census) iterate(users map[uint32]int) error {
	r, err := c.iter.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	const nowhere = 0
	c.any = make(map[uint32]bool)
	in := make(map[uint32]uint32) // namespaces of processes
	const size = 8                // of inhabitantsInhabitant
	for ; len(content) >= size; content = content[size:] {
		netns, pid := binary.NativeEndian.Uint32(content), binary.NativeEndian.Uint32(content[4:])
		c.any[netns] = true
		if other, seen := in[pid]; seen && other != netns {
			netns = nowhere
		}
		in[pid] = netns
	}
	for pid, netns := range in {
		users[netns] = int(pid)
	}
	delete(users, nowhere)
	return nil
}

func readProcesses(users map[uint32]int) error {
	processes, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return err
	}
	for _, p := range processes {
		number, ok := readNumber(p)
		if !ok {
			continue
		}
		if users[number], err = strconv.Atoi(strings.Split(p, "/")[2]); err != nil {
			return err
		}
	}
	return nil
}

// readNumber returns the inode that a namespace link names; ok is false if the
// process has ended.
func readNumber(link string) (number uint32, ok bool) {
	word, err := os.Readlink(link)
	if err == nil {
		_, err = fmt.Sscanf(word, "net:[%d]", &number)
	}
	return number, err == nil
}

// isWhole reports whether all threads of a process are in a namespace.
func isWhole(pid int, inode uint32) bool {
	numbers := threads(fmt.Sprintf("/proc/%d", pid))
	return len(numbers) > 0 && !slices.ContainsFunc(numbers, func(n uint32) bool { return n != inode })
}

// threads returns the namespaces of the threads of processes; processes is the
// pattern of their directories.
func threads(processes string) (numbers []uint32) {
	paths, _ := filepath.Glob(processes + "/task/*/ns/net") // the pattern is valid
	for _, p := range paths {
		if n, ok := readNumber(p); ok {
			numbers = append(numbers, n)
		}
	}
	return numbers
}
