package figures

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/scon-project/scon/lab/appbench"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Without Docker's client and wrk, one error names both with the command that installs
// them, and nothing is started. Servers are found outside of $PATH.
func TestAppNeedsPrograms(t *testing.T) {
	cmd := exec.Command(scon, "bench", "app")
	cmd.Env = []string{"PATH=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("error %v, want exit status 1", err)
	}
	if want := regexp.MustCompile(`^scon: (?:\S+, )*docker, (?:\S+, )*wrk, .* are missing: apt-get install docker(?:\.io|-cli) .*\bwrk\b.*\n$`); !want.Match(out) {
		t.Errorf("output %q, want %s", out, want)
	}
}

// TestApp asks nginx and mosquitto in a container of a real Docker, once in every mode. The command
// itself checks which path the packets took.
func TestApp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.json")
	cmd := exec.Command(scon, "bench", "app", "--rounds", "1", "--seconds", "1", "--json", file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	checkNothingIsLeft := nstest.Left(t)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	checkNothingIsLeft("sconbench")
	if groups, _ := filepath.Glob("/sys/fs/cgroup/*scon-app*"); len(groups) > 0 {
		t.Errorf("control groups are left: %v", groups)
	}
	r, err := bench.ReadResult(file, appbench.Experiment())
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"native", "container", "express"} {
		for _, step := range []string{"keep_alive", "close", "http10", "mqtt_message", "files"} {
			if n := len(r.Modes[mode][step+"_per_s"]); n != 1 {
				t.Errorf("%d samples of %s in %s, want 1", n, step, mode)
			}
		}
	}
	for _, s := range r.Samples {
		if s.Mode == "express" && s.Step == "keep_alive" && s.ExpressShare < 0.9 {
			t.Errorf("only %v of the packets of kept connections went express", s.ExpressShare)
		}
	}
}
