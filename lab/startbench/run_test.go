package startbench_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/startbench"
	"github.com/scon-project/scon/test/bed/nstest"
)

// silent is a progress display without output.
type silent struct{}

func (silent) Step(int, int, string) {}
func (silent) Done()                 {}

// options returns the options of a small run. It skips the test if programs are
// missing.
func options(t *testing.T, launcher, runtime string, networks ...string) startbench.Options {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test starts containers: run it as root (sudo make test)")
	}
	withPrograms(t)
	o := startbench.Options{Launcher: launcher, Runtime: runtime, Count: 2, Rounds: 1, Progress: silent{}}
	for _, name := range networks {
		m, err := startbench.ParseMode(name)
		if err != nil {
			t.Fatal(err)
		}
		o.Modes = append(o.Modes, m)
	}
	if err := o.Check(); err != nil {
		t.Skip(err)
	}
	return o
}

// left returns a check that a run has left nothing behind: no namespace, process,
// file, mount or cgroup.
func left(t *testing.T) (check func()) {
	t.Helper()
	prefix := fmt.Sprintf("scon-s%d", os.Getpid())
	checkNamespaces := nstest.Left(t)
	return func() {
		t.Helper()
		checkNamespaces(prefix)
		for _, pattern := range []string{"/sys/fs/cgroup/" + prefix, "/sys/fs/cgroup/*/" + prefix, filepath.Join(os.TempDir(), prefix+"*")} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			if len(found) > 0 {
				t.Errorf("left: %v", found)
			}
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(mounts), prefix) {
			t.Errorf("mounts are left:\n%s", mounts)
		}
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if text, _ := os.ReadFile(line); strings.Contains(string(text), prefix+"-") {
				t.Errorf("a process is left: %q", text)
			}
		}
	}
}

func TestRunc(t *testing.T) {
	networks := []string{"none", "noop", "bridge"}
	o := options(t, startbench.LauncherDirect, startbench.RuntimeRunc, networks...)
	check := left(t)
	r, err := startbench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	check()
	for _, mode := range networks {
		for _, metric := range []string{"total_ms", "cpu_s", "netns_ms", "cgroup_ms", "startvm_ms"} {
			if samples := r.Modes[mode][metric]; len(samples) != 1 || samples[0] <= 0 {
				t.Errorf("%s, %s: %v", mode, metric, samples)
			}
		}
		for _, metric := range []string{"add_p50_ms", "add_p99_ms", "add1_p50_ms", "add4_p50_ms"} {
			if n := len(r.Modes[mode][metric]); n != 1 && mode != "none" || n != 0 && mode == "none" {
				t.Errorf("%s, %s: %d samples", mode, metric, n)
			}
		}
		for _, other := range networks {
			if _, ok := r.Ratios[mode+"/"+other]["total_ms"]; ok == (mode == other) {
				t.Errorf("ratio of %s to %s: %v", mode, other, ok)
			}
		}
	}
	if len(r.Modes["bridge"]["ping_ms"]) != 1 || len(r.Modes["none"]["ping_ms"]) != 0 {
		t.Error("containers at the bridge, and no others, have to answer pings")
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"total_ms", "/ none", "/ bridge", "| noop"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in the table:\n%s", want, &table)
		}
	}
}

// Containers of the other runtimes come up and answer pings as well.
func TestRunscAndMicroVM(t *testing.T) {
	for runtime, count := range map[string]int{startbench.RuntimeRunsc: 2, startbench.RuntimeMicroVM: 1} {
		t.Run(runtime, func(t *testing.T) {
			o := options(t, startbench.LauncherDirect, runtime, "none", "bridge")
			o.Count, o.Steps = count, []string{startbench.StepStart}
			check := left(t)
			r, err := startbench.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			check()
			if r.Modes["none"]["total_ms"] == nil || r.Modes["bridge"]["ping_ms"] == nil {
				t.Errorf("measured: %v", r.Modes)
			}
		})
	}
}

// Pods that a CRI client of containerd starts come up and answer pings.
func TestCRI(t *testing.T) {
	o := options(t, startbench.LauncherCRI, startbench.RuntimeRunc, "none", "bridge")
	o.Steps = []string{startbench.StepStart}
	check := left(t)
	r, err := startbench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	check()
	if r.Modes["none"]["runpod_ms"] == nil || r.Modes["bridge"]["ping_ms"] == nil {
		t.Errorf("measured: %v", r.Modes)
	}
}

// interrupt is a progress display that cancels a run during its second mode.
type interrupt struct {
	steps  int
	cancel context.CancelFunc
}

func (i *interrupt) Step(int, int, string) {
	if i.steps++; i.steps == 3 { // each visit reports its first step twice
		time.AfterFunc(100*time.Millisecond, i.cancel)
	}
}

func (*interrupt) Done() {}

func TestInterruptLeavesNothing(t *testing.T) {
	o := options(t, startbench.LauncherDirect, startbench.RuntimeRunc, "none", "bridge")
	o.Count, o.Steps = 10, []string{startbench.StepStart}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = &interrupt{cancel: cancel}
	check := left(t)
	r, err := startbench.Run(ctx, o)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the cancellation", err)
	}
	if r == nil || !r.Interrupted || len(r.Modes["none"]["total_ms"]) != 1 {
		t.Errorf("result %+v, want the sample of none", r)
	}
	check()
}

// The tables of a result and of its file are the same.
func TestShowFile(t *testing.T) {
	o := options(t, startbench.LauncherDirect, startbench.RuntimeRunc, "none")
	o.Steps = []string{startbench.StepStart}
	r, err := startbench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "startup.json")
	if err := r.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	again, err := bench.ReadResult(path, startbench.Experiment())
	if err != nil {
		t.Fatal(err)
	}
	var first, second strings.Builder
	if err := errors.Join(r.WriteTable(&first), again.WriteTable(&second)); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() {
		t.Errorf("shown first:\n%s\nfrom the file:\n%s", &first, &second)
	}
}
