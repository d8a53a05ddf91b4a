package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/vm"
)

// packages are those whose tests run in guests.
var packages = []string{"contable", "daemon", "datapath"}

// binaries builds what guests run, once: path in the guest -> path here. They
// are static.
var binaries = sync.OnceValues(func() (map[string]string, error) {
	files := map[string]string{"/opt/scon": filepath.Join(dir, "scon")}
	builds := [][]string{{"build", "-o", files["/opt/scon"], "./cmd/scon"}}
	for _, p := range packages {
		name := p + ".test"
		files["/opt/"+name] = filepath.Join(dir, name)
		builds = append(builds, []string{"test", "-c", "-vet=off", "-o", files["/opt/"+name], "./internal/" + p})
	}
	for _, args := range builds {
		cmd := exec.Command("go", args...)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-ldflags=-s")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, err
		}
	}
	return files, nil
})

// dir holds the binaries while the tests run.
var dir string

// guest is a kind of guest.
type guest struct {
	kernel string
	// cpus is 1 where the kernel itself lets packets overtake each other.
	cpus  int
	mode  string // how devices are hooked: "clsact" or "tcx"
	noBTF bool
	short bool // also in the short form
}

// Before Linux 6.5 packets wait for ksoftirqd while their sender moves on to
// another CPU, and overtakes them from there: no test of order could pass.
var guests = map[string]guest{
	"6.1":              {kernel: "6.1", cpus: 1, mode: "clsact", short: true},
	"6.1 without BTF":  {kernel: "6.1", cpus: 1, mode: "clsact", noBTF: true},
	"6.12":             {kernel: "6.12", cpus: 2, mode: "tcx", short: true},
	"6.12 without BTF": {kernel: "6.12", cpus: 2, mode: "tcx", noBTF: true},
	"newest":           {kernel: "newest", cpus: 2, mode: "tcx"},
}

// hideBTF takes the kernel's type information away, from everybody who looks
// for it where a kernel without it has none either.
const hideBTF = "mount -t tmpfs -o ro tmpfs /sys/kernel/btf\n"

// run runs a command in a guest and returns what it printed, if it succeeded
// and the kernel had nothing to complain of.
func (g guest) run(t *testing.T, command string, icount bool) string {
	t.Helper()
	files, err := binaries()
	if err != nil {
		t.Fatalf("building what runs in the guest: %v", err)
	}
	if g.noBTF {
		command = hideBTF + command
	}
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: g.kernel, Arch: "amd64", CPUs: g.cpus, Icount: icount,
		Files: files, Command: command, Timeout: 15 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 0 {
		t.Fatalf("exit status %d:\n%s", r.ExitCode, r.Output)
	}
	if r.Complaints != "" {
		t.Errorf("the kernel complains:\n%s", r.Complaints)
	}
	return r.Output
}

// skipped finds a test that was skipped.
var skipped = regexp.MustCompile(`(?m)^ *--- SKIP: .*$`)

// test runs the tests of a package, those whose names match. None may be
// skipped, but for those of tcx where there is none.
func (g guest) test(t *testing.T, pkg, names string, icount bool) {
	t.Helper()
	out := g.run(t, "cd /tmp && /opt/"+pkg+".test -test.v -test.run '"+names+"'", icount)
	if !strings.Contains(out, "--- PASS: ") {
		t.Errorf("no test was run:\n%s", out)
	}
	excused := 0
	if g.mode != "tcx" {
		excused = strings.Count(out, "no tcx: this kernel is older than Linux 6.6")
	}
	if skips := skipped.FindAllString(out, -1); len(skips) > excused {
		t.Errorf("tests were skipped, %d of them for want of tcx:\n%s", excused, strings.Join(skips, "\n"))
	}
}
