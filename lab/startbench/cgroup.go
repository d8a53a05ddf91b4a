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

// CPU shares of the bench: the maximum of cgroup v1 and v2, so that other processes
// of the machine yield to it.
const (
	mostShares = "262144"
	mostWeight = "10000"
)

// group is the bench's cgroup. Processes that the bench starts are in "work",
// containers in "pods".
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

// parseHierarchies returns the mount points of the controllers cpu and cpuacct, or
// of v2, and of all other hierarchies, since runtimes make groups in those as well.
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

// v1 reports whether the cpu controller is in a hierarchy of cgroup v1.
func (g *group) v1() bool { return g.roots["cpu"] != "" }

// controllers returns the controllers for the bench's own processes.
func (g *group) controllers() []string {
	if !g.v1() {
		return []string{""}
	}
	if g.roots[""] != "" {
		return []string{"cpu", "cpuacct", ""}
	}
	return []string{"cpu", "cpuacct"}
}

// unified returns the group's directory in cgroup v2, "" without v2.
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

// pods returns the parent of the containers' groups, in the form that runtimes take.
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

// used returns the processor time of the group so far, including processes that have
// ended.
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

// close removes the group from every hierarchy. All its processes must have ended.
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

// removeGroup removes a group. It waits for processes that are exiting.
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
