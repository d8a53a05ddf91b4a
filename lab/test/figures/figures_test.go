package figures

import (
	"bytes"
	"errors"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/test/bed/nstest"
)

// scon is the program under test, with scon-lab beside it.
var scon string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "scon-figures-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	scon = filepath.Join(dir, "scon")
	for from, name := range map[string]string{"../../..": "scon", "../..": "scon-lab"} {
		build := exec.Command("go", "build", "-C", from, "-o", dir, "./cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v: %s", name, err, out)
			return 1
		}
	}
	return m.Run()
}

// TestQuickFigures measures a figure with external programs and one without, in all
// modes.
func TestQuickFigures(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test builds a lab: run it as root (sudo make test)")
	}
	if err := figures.Check([]string{"8"}); err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(t.TempDir(), "results")
	cmd := exec.Command(scon, "bench", "figures", "--quick", "--dir", dir, "8", "14")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	checkNothingIsLeft := nstest.Left(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	checkNothingIsLeft("sconbench" + strconv.Itoa(cmd.Process.Pid))
	if want := "report: " + dir + "/figures.md\n"; string(out) != want {
		t.Errorf("output %q, want %q", out, want)
	}
	for source, metric := range map[string]string{"http": "http_p50_us", "flows": "flows_p50_us"} {
		r, err := bench.ReadResult(filepath.Join(dir, source+".json"), figures.Experiments()...)
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range []string{"native", "container", "express"} {
			if n := len(r.Modes[mode][metric]); n != figures.Quick.Rounds {
				t.Errorf("%d samples of %s in %s, want %d", n, metric, mode, figures.Quick.Rounds)
			}
		}
	}
	for _, plot := range []string{"fig8a.png", "fig8b.png", "fig14.png"} {
		f, err := os.Open(filepath.Join(dir, "figures", plot))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := png.Decode(f); err != nil {
			t.Errorf("%s: %v", plot, err)
		}
	}
}

// If a program is missing, the error names it, and nothing is started or written.
func TestMissingProgramIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	cmd := exec.Command(scon, "bench", "figures", "--dir", dir, "11")
	cmd.Env = []string{"PATH=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("error %v, want exit status 1", err)
	}
	if want := "iperf3 is missing: apt-get install iperf3"; !strings.Contains(string(out), want) {
		t.Errorf("output %q, want %q in it", out, want)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder of results was made")
	}
	if left, _ := filepath.Glob("/run/netns/sconbench" + strconv.Itoa(cmd.Process.Pid) + "*"); len(left) > 0 {
		t.Errorf("namespaces are left: %v", left)
	}
}

// An unknown figure is a usage error.
func TestUnknownFigure(t *testing.T) {
	err := exec.Command(scon, "bench", "figures", "3").Run()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("error %v, want exit status 2", err)
	}
}
