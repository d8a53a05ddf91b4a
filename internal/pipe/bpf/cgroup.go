package bpf

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A socket belongs to the cgroup of the process that creates it, at that time, and runs the
// programs of that cgroup whichever process uses it later. The copy program is attached to a
// cgroup that has only this process, so that it runs for no other socket of the machine.
var entered struct {
	mu    sync.Mutex
	users int
	home  string // previous cgroup; "" if the process was alone there and has stayed
	group string // the cgroup that has only this process
}

// ownCgroup moves this process into a cgroup of its own unless it has one, and returns the
// cgroup's path. The last call of leave moves the process back.
func ownCgroup() (path string, leave func() error, err error) {
	entered.mu.Lock()
	defer entered.mu.Unlock()
	if entered.users == 0 {
		if err := enterCgroup(); err != nil {
			return "", nil, err
		}
	}
	entered.users++
	return entered.group, leaveCgroup, nil
}

func enterCgroup() error {
	group, err := cgroupOf("/proc/self")
	if err != nil {
		return err
	}
	pid := strconv.Itoa(os.Getpid())
	procs, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("read the processes of a cgroup: %w", err)
	}
	if strings.TrimSpace(string(procs)) == pid {
		entered.home, entered.group = "", group
		return nil
	}
	removeStale(group)
	own := filepath.Join(group, "scon-pipe-"+pid)
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create a cgroup: %w", err)
	}
	if err := moveTo(own); err != nil {
		return errors.Join(err, os.Remove(own))
	}
	entered.home, entered.group = group, own
	return nil
}

func leaveCgroup() error {
	entered.mu.Lock()
	defer entered.mu.Unlock()
	entered.users--
	if entered.users > 0 || entered.home == "" {
		return nil
	}
	if err := moveTo(entered.home); err != nil {
		return err
	}
	// A child process may still be in it: then a later broker removes it.
	removeStale(entered.group)
	if err := os.Remove(entered.group); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove a cgroup: %w", err)
	}
	return nil
}

// removeStale removes the cgroups of brokers that have ended.
func removeStale(parent string) {
	left, err := filepath.Glob(filepath.Join(parent, "scon-pipe-*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "scon-pipe-"))
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			removeStale(dir)   // those of its children
			_ = os.Remove(dir) // if busy, a later broker removes it
		}
	}
}

func moveTo(group string) error {
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("enter a cgroup: %w", err)
	}
	return nil
}

var errNoCgroup = errors.New("no cgroup2 file system is mounted")

// cgroupOf returns the directory of a process's cgroup (version 2); proc is the process's
// directory in /proc.
func cgroupOf(proc string) (string, error) {
	content, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return "", fmt.Errorf("read the process's cgroup: %w", err)
	}
	within := ""
	for line := range strings.Lines(string(content)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			within = path
		}
	}
	mount, err := cgroupMount(filepath.Join(proc, "mountinfo"))
	if err != nil || within == "" {
		return "", errors.Join(errNoCgroup, err)
	}
	return filepath.Join(mount, within), nil
}

// cgroupMount returns the mount point of the root of the cgroup2 hierarchy.
func cgroupMount(mountinfo string) (string, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		mount, rest, ok := strings.Cut(in.Text(), " - ")
		fields := strings.Fields(mount)
		if ok && strings.HasPrefix(rest, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
			return fields[4], nil
		}
	}
	return "", errNoCgroup
}
