package pipebench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/nstest"
)

// TestMain builds the programs, and runs the test's executable as a broker when the
// bed starts it as one.
func TestMain(m *testing.M) {
	if len(os.Args) == len(brokerArgs)+3 && slices.Equal(os.Args[1:len(brokerArgs)+1], brokerArgs) {
		if err := ServeBroker(os.Args[len(brokerArgs)+1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > len(runArgs) && slices.Equal(os.Args[1:len(runArgs)+1], runArgs) {
		os.Setenv("LD_PRELOAD", os.Getenv("SCON_TEST_RUN")) // as 'scon run' does
		program := os.Args[len(runArgs)+1:]
		fmt.Fprintln(os.Stderr, syscall.Exec(program[0], program, os.Environ()))
		os.Exit(1)
	}
	if out, err := exec.Command("make", "-C", "../..", "libsconpipe", "examples").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v: %s", err, out)
		os.Exit(1)
	}
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		panic(err)
	}
	os.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	os.Setenv("SCON_TEST_RUN", filepath.Join(bin, "libsconrun.so"))
	done := nstest.AsSCON()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		done()
		os.Exit(status)
	}))
}

type silent struct{}

func (silent) Step(int, int, string) {}
func (silent) Done()                 {}

func small() Options {
	return Options{Rounds: 1, Progress: silent{}, Notes: io.Discard, small: true}
}

// Every mode that this machine supports has every metric, and a ratio to each mode
// before it, except for the metrics that bare memory does not support.
func TestRun(t *testing.T) {
	for _, apps := range []bool{false, true} {
		o := small()
		o.Apps = apps
		t.Run(o.experimentName(), func(t *testing.T) {
			left := nstest.Left(t)
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			checkResult(t, o, r)
			left("sconpipe")
		})
	}
}

// cannot reports whether a mode lacks a metric.
func cannot(m mode, metric string) bool {
	switch metric {
	case "rtt_64_sleep_p50_us", "conns_4096_gbps", "conns_4096_least_gbps", "conns_4096_rules_least_gbps":
		return m.bare
	case "death_p50_ms", "death_max_ms":
		return m.bare || m.sockmap
	}
	return false
}

func checkResult(t *testing.T, o Options, r *bench.Result) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.json")
	if err := r.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	r, err := bench.ReadResult(path, Experiments()...)
	if err != nil {
		t.Fatal(err)
	}
	e, err := o.experiment()
	if err != nil {
		t.Fatal(err)
	}
	if r.Experiment != o.experimentName() || r.Rounds != 1 || r.Interrupted || len(r.Errors) > 0 {
		t.Errorf("%+v", r)
	}
	for i, m := range e.Modes {
		for _, s := range e.Steps {
			if s.Name == iperfProgram && modeOf(m.Name).transport != "tcp" {
				continue // the mode has no other transport
			}
			for _, metric := range s.Metrics {
				if cannot(modeOf(m.Name), metric.Name) {
					continue
				}
				if samples := r.Modes[m.Name][metric.Name]; len(samples) != 1 || samples[0] <= 0 {
					t.Errorf("%s has samples %v of %s", m.Name, samples, metric.Name)
				}
				if r.Units[metric.Name] != metric.Unit {
					t.Errorf("the unit of %s is %q", metric.Name, r.Units[metric.Name])
				}
				for _, before := range e.Modes[:i] {
					if len(r.Modes[before.Name][metric.Name]) == 0 {
						continue
					}
					if _, ok := r.Ratios[m.Name+"/"+before.Name][metric.Name]; !ok {
						t.Errorf("there is no ratio %s/%s of %s", m.Name, before.Name, metric.Name)
					}
				}
			}
		}
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range e.Modes {
		rows = append(rows, "| "+m.Name+" ")
	}
	if slices.Contains(e.Pairs, [2]string{"sealed", "unix"}) {
		rows = append(rows, "| sealed/unix ")
	}
	for _, row := range rows {
		if !strings.Contains(table.String(), row) {
			t.Errorf("the table has no row %q:\n%s", row, &table)
		}
	}
}

// A copy device is measured where there is one, here a mock of its driver, and the mode
// counts the processor time of the helper.
func TestCopyDevice(t *testing.T) {
	left := nstest.Left(t)
	dir := t.TempDir()
	for _, build := range [][]string{
		{"make", "-C", "../..", "cuda", "BIN=" + dir, "CUDA=" + filepath.Join(dir, "scon-pipe-cuda")},
		{"cc", "-O2", "-fPIC", "-shared", "-o", filepath.Join(dir, "libcuda.so.1"), "../../internal/pipe/testdata/libcuda.c"},
	} {
		if out, err := exec.Command(build[0], build[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("build the copy helper: %v: %s", err, out)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	o := small()
	o.Modes = []string{"copier", "copier_device"}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "mode copier_device: ") {
		t.Errorf("without a driver: %v", err)
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	checkResult(t, o, r)
	left("sconpipe")
}

// An interrupted run leaves nothing behind and keeps its samples.
func TestInterrupted(t *testing.T) {
	left := nstest.Left(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := small()
	o.Modes, o.Rounds = []string{"unix"}, 1000
	o.Progress = progress(func(done int) {
		if done == 3 {
			cancel()
		}
	})
	r, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended with %v", err)
	}
	if !r.Interrupted || len(r.Samples) != 3 || len(r.Errors) > 0 {
		text, _ := json.Marshal(r)
		t.Errorf("%s", text)
	}
	left("sconpipe")
}

// progress calls a function with the number of completed steps.
type progress func(done int)

func (p progress) Step(done, _ int, _ string) { p(done) }
func (p progress) Done()                      {}

func TestCheckModes(t *testing.T) {
	for names, want := range map[string]string{
		"tcp_bridge":   "",
		"tcp_bride":    `did you mean "tcp_bridge"?`,
		"sockmap":      "",
		"unix,nothing": `no mode "nothing"`,
	} {
		err := CheckModes(strings.Split(names, ","), false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", names, err)
		}
	}
	if err := CheckModes([]string{"sockmap"}, true); err == nil {
		t.Error("the applications have a mode sockmap")
	}
}

// Python programs sum vectors as ranks, each in a container.
func TestPython(t *testing.T) {
	script, err := filepath.Abs("../../examples/allreduce.py")
	if err != nil {
		t.Fatal(err)
	}
	o := small()
	o.Apps = true
	b, err := openBed(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	m := modeOf("sealed")
	args := []string{script, ""}
	for n := range 3 {
		address, _ := b.address(m, n+1)
		args = append(args, address)
	}
	var ranks []*program
	for n := range 3 {
		args[1] = fmt.Sprint(n)
		p, err := b.start(t.Context(), m, n+1, "python3", nil, args...)
		if err != nil {
			t.Fatal(err)
		}
		defer p.kill()
		ranks = append(ranks, p)
	}
	for _, p := range ranks {
		if err := p.end(nil); err != nil {
			t.Error(err)
		}
	}
}

// A program that finds an error reports it, and the sample fails.
func TestMissingListener(t *testing.T) {
	o := small()
	o.Modes = []string{"sealed"}
	b, err := openBed(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	p, err := b.start(t.Context(), modeOf("tcp_bridge"), 1, loadProgram, nil, "listen", "nowhere:1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	if err := p.ready(); err == nil || !strings.Contains(err.Error(), "want tcp:ADDRESS:PORT") {
		t.Errorf("it reported %v", err)
	}
}

// What a baseline cannot do is missing, with the reason; what the pipe cannot do is an error.
func TestMissingCell(t *testing.T) {
	var notes strings.Builder
	o := small()
	o.Notes = &notes
	b, err := openBed(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	dir, socket := b.dir, b.broker.socket
	defer func() {
		b.dir, b.broker.socket = dir, socket
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	b.dir, b.broker.socket = dir+"/none", dir+"/none"
	step := bench.Step{Name: "stream_64k"}
	sample, err := b.Take(t.Context(), bench.Mode{Name: "unix"}, step)
	if err != nil || len(sample.Values) > 0 || !strings.HasPrefix(notes.String(), "missing: stream_64k of unix: ") {
		t.Errorf("sample %v, error %v, notes %q", sample, err, &notes)
	}
	if _, err := b.Take(t.Context(), bench.Mode{Name: "sealed"}, step); err == nil {
		t.Error("no error without a broker")
	}
}

// A mode that cannot have its files is not begun.
func TestTooManyFiles(t *testing.T) {
	for _, m := range modes {
		if err := m.tooManyFiles(1); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if err := m.tooManyFiles(1 << 40); !m.bare && (err == nil || !strings.Contains(err.Error(), "open files")) {
			t.Errorf("%s: error %v", m.name, err)
		}
	}
}
