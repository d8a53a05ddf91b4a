package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// recorder is a Progress that records the steps it receives.
type recorder struct {
	quiet
	steps []string
}

func (p *recorder) Step(_, _ int, next string) { p.steps = append(p.steps, next) }

// The host follows the guest's steps wherever the console splits the lines.
func TestGuestProgress(t *testing.T) {
	var p recorder
	reader := &guestReader{progress: &p}
	lines := &strings.Builder{}
	guest := GuestOptions(2, lines).Progress
	guest.Step(1, 4, "round 1 of 2, native udp_64")
	lines.WriteString("something else\n" + stepMark + "nonsense\n" + stepMark + "5 4 beyond\n")
	guest.Step(2, 4, "express")
	for piece := range slices.Chunk([]byte(strings.ReplaceAll(lines.String(), "\n", "\r\n")), 7) {
		if _, err := reader.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(p.steps, "; "); got != "round 1 of 2, native udp_64; express" {
		t.Errorf("recorded %q", got)
	}
}

// The samples of a guest that ends early are kept.
func TestGuestIsInterrupted(t *testing.T) {
	e := Experiment{Name: "cost", Counted: true, Modes: []Mode{Native, Express}, Steps: []Step{costStep("udp_64", "udp", peer.Stream, 64)}}
	reader := &guestReader{experiment: e, rounds: 3, progress: quiet{}}
	if r := reader.interrupted(time.Now()); r != nil {
		t.Errorf("a result of no samples: %+v", r)
	}
	console := &strings.Builder{}
	taken := GuestOptions(3, console).Taken
	there := &Result{Kernel: "the guest's", Machine: "QEMU"}
	for mode, insn := range map[Mode]float64{Native: 1000, Express: 1040} {
		taken(there, Sample{Round: 1, Mode: mode.Name, Step: "udp_64", Values: map[string]float64{"udp_64_insn": insn}})
	}
	whole := strings.ReplaceAll(console.String(), "\n", "\r\n")
	console.Reset()
	taken(there, Sample{Round: 2, Mode: Native.Name, Step: "udp_64", Values: map[string]float64{"udp_64_insn": 5}})
	if _, err := reader.Write([]byte(whole + console.String()[:console.Len()/2])); err != nil {
		t.Fatal(err)
	}
	r := reader.interrupted(time.Now())
	if r == nil {
		t.Fatal("no result")
	}
	if !r.Interrupted || r.Kernel != there.Kernel || r.Machine != there.Machine || r.Rounds != 3 || len(r.Samples) != 2 {
		t.Errorf("result %+v, want an interrupted one of two samples in the guest", r)
	}
	if ratio := r.Ratios["express/native"]["udp_64_insn"].Median; ratio != 1.04 {
		t.Errorf("express/native is %v, want 1.04", ratio)
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "Interrupted") {
		t.Errorf("the table does not say that it is not complete: %v\n%s", err, &table)
	}
}

func TestRunsAlone(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "nothing.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	build := func(arch string) string {
		path := filepath.Join(dir, arch)
		cmd := exec.Command("go", "build", "-o", path, source)
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return path
	}
	for _, arch := range []string{"amd64", "arm64"} {
		path := build(arch)
		for _, guest := range []string{"amd64", "arm64"} {
			if err := runsAlone(path, guest); (err == nil) != (arch == guest) {
				t.Errorf("an executable for %s in a guest of %s: %v", arch, guest, err)
			}
		}
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := runsAlone(sh, runtime.GOARCH); err == nil || !strings.Contains(err.Error(), "needs shared libraries") {
		t.Errorf("a shell that is linked dynamically: %v", err)
	}
}

// Every step of Cost also runs without a guest, though its figures mean nothing
// then: no step hangs, and its messages cross the uplink.
func TestLockstepInTheLab(t *testing.T) {
	needRoot(t)
	b, err := openLab(Experiment{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, step := range Cost.Steps {
		step.Spec.Count, step.Spec.WarmUp = 20, 2
		s, err := (countingBed{b}).take(t.Context(), Container, step)
		if err != nil {
			t.Errorf("%s: %v", step.Name, err)
			continue
		}
		if insn := s.Values[step.Name+"_insn"]; insn <= 0 {
			t.Errorf("%s: %v", step.Name, s.Values)
		}
		if step.Spec.Proto == "udp" && step.Spec.Pattern == peer.Stream && s.UplinkPackets < 42 {
			t.Errorf("%s: only %d packets crossed %s", step.Name, s.UplinkPackets, lab.Uplink)
		}
	}
}
