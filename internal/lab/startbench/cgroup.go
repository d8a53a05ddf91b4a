package startbench

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// shares of the CPUs that the bench asks for: the most there is, in cgroup v1
// and v2. What else runs on the machine waits meanwhile.
const (
	mostShares = "262144"
	mostWeight = "10000"
)

// group is a cgroup of the bench's own. What it starts is in "work"; containers
// are in "pods".
type group struct {
	name  string            // relative to the hierarchies
	roots map[string]string // by controller; v2's is ""
}

// openGroup makes the group.
func openGroup(name string) (g *group, err error) {
	g = &group{name: name}
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	if g.roots, err = parseHierarchies(bufio.NewScanner(mounts)); err != nil {
		return nil, err
	}
	if err := g.make(); err != nil {
		return nil, errors.Join(fmt.Errorf("make a cgroup: %w", err), g.close())
	}
	return g, nil
}

// parseHierarchies reads where the controllers cpu and cpuacct are mounted, or
// v2, and all other hierarchies, in which runtimes make groups, too.
func parseHierarchies(mounts *bufio.Scanner) (map[string]string, error) {
	roots := map[string]string{}
	for mounts.Scan() {
		fields := strings.Fields(mounts.Text())
		switch {
		case len(fields) < 4:
		case fields[2] == "cgroup2":
			roots[""] = fields[1]
		case fields[2] == "cgroup":
			for option := range strings.SplitSeq(fields[3], ",") {
				if !slices.Contains([]string{"rw", "ro", "relatime", "nosuid", "nodev", "noexec"}, option) {
					roots[option] = fields[1]
				}
			}
		}
	}
	if len(roots) == 0 {
		return nil, errors.New("no cgroups are mounted")
	}
	return roots, nil
}

// v1 tells whether the CPUs are shared out in a hierarchy of cgroup v1.
func (g *group) v1() bool { return g.roots["cpu"] != "" }

// controllers that the bench's own processes are put under.
func (g *group) controllers() []string {
	if !g.v1() {
		return []string{""}
	}
	if g.roots[""] != "" {
		return []string{"cpu", "cpuacct", ""}
	}
	return []string{"cpu", "cpuacct"}
}

// unified is the group's folder in cgroup v2, "" without it.
func (g *group) unified() string {
	if g.roots[""] == "" {
		return ""
	}
	return g.dir("")
}

func (g *group) dir(controller string, below ...string) string {
	return filepath.Join(slices.Concat([]string{g.roots[controller], g.name}, below)...)
}

func (g *group) make() error {
	for _, c := range g.controllers() {
		if err := os.MkdirAll(g.dir(c, "work"), 0o755); err != nil {
			return err
		}
	}
	if g.v1() {
		return os.WriteFile(filepath.Join(g.dir("cpu"), "cpu.shares"), []byte(mostShares), 0)
	}
	for _, dir := range []string{g.roots[""], g.dir("")} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(g.dir(""), "cpu.weight"), []byte(mostWeight), 0)
}

// pods is the parent of containers' groups, as runtimes take it.
func (g *group) pods() string { return "/" + g.name + "/pods" }

// add puts a process into "work".
func (g *group) add(pid int) error {
	for _, c := range g.controllers() {
		procs := filepath.Join(g.dir(c, "work"), "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("put process %d into a cgroup: %w", pid, err)
		}
	}
	return nil
}

// used is the processor time of everything in the group so far, also of what
// has ended.
func (g *group) used() (time.Duration, error) {
	if g.v1() {
		text, err := os.ReadFile(filepath.Join(g.dir("cpuacct"), "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return time.Duration(ns), err
	}
	text, err := os.ReadFile(filepath.Join(g.dir(""), "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, errors.New("cpu.stat has no usage_usec")
}

// close removes the group in every hierarchy. What was in it has to have ended.
func (g *group) close() error {
	var errs []error
	for controller := range g.roots {
		root := g.dir(controller)
		var dirs []string
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		errs = append(errs, err)
		for _, dir := range slices.Backward(dirs) {
			errs = append(errs, removeGroup(dir))
		}
	}
	return errors.Join(errs...)
}

// removeGroup waits for processes that are just ending.
func removeGroup(dir string) (err error) {
	for range 100 {
		err = os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}
