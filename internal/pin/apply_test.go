package pin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/check"
)

// everything is a plan of each kind of file there is.
func everything(t testing.TB, h *Host) Plan {
	t.Helper()
	p, err := New(capture(t, h), Options{Policy: Core, Steer: RPS, Power: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// content is every file of a machine, but for locks.
func content(t testing.TB, h *Host) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(h.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "pin.lock" {
			return err
		}
		b, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, h.Root)] = strings.TrimSpace(string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// normal has masks as sets: a fixture's file keeps what was written, the kernel
// prints its own form.
func normal(t testing.TB, files map[string]string) map[string]string {
	t.Helper()
	for name, text := range files {
		if base := filepath.Base(name); base == "rps_cpus" || base == "xps_cpus" {
			set, err := parseMask(text)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = set.String()
		}
	}
	return files
}

func sameContent(t testing.TB, h *Host, want map[string]string) {
	t.Helper()
	if diff := check.Diff(normal(t, want), normal(t, content(t, h))); diff != "" {
		t.Errorf("not as it was (-was +is):\n%s", diff)
	}
}

// Everything that was planned is in the files, and back afterwards.
func TestApplyAndRestore(t *testing.T) {
	h := fixture(t, "desktop")
	before := content(t, h)
	p := everything(t, h)
	results, err := h.Apply(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(p.Settings) || len(results) < 20 {
		t.Fatalf("%d results of %d settings", len(results), len(p.Settings))
	}
	for _, r := range results {
		if now, err := h.get(r.Setting); err != nil || now != r.Want || r.Before != r.Now || r.Refused != "" {
			t.Errorf("%s is %q, %v: %+v", r.Place(), now, err, r)
		}
	}
	file := content(t, h)["/etc/default/irqbalance"]
	if want := before["/etc/default/irqbalance"] + "\n\n" + argsMark + "\n" +
		`IRQBALANCE_ARGS="--powerthresh=2 --banirq=130 --banirq=131 --banirq=132 --banirq=133 --banirq=134"`; file != want {
		t.Errorf("irqbalance's settings:\n%s\nwant\n%s", file, want)
	}
	if kernel := h.Kernel.(*fakeKernel); kernel.restarts != 1 {
		t.Errorf("irqbalance was restarted %d times", kernel.restarts)
	}

	list, err := h.Restore()
	if err != nil || len(list) != len(p.Settings) {
		t.Fatalf("restored %d settings of %d: %v", len(list), len(p.Settings), err)
	}
	sameContent(t, h, before)
	if list, err := h.Restore(); err != nil || len(list) > 0 {
		t.Errorf("a second time: %v, %v", list, err)
	}
}

// Another plan begins from what was there, not from the one before.
func TestApplyTwice(t *testing.T) {
	h := fixture(t, "desktop")
	before := content(t, h)
	if _, err := h.Apply(everything(t, h)); err != nil {
		t.Fatal(err)
	}
	single, err := New(capture(t, h), Options{Policy: Single, Steer: Direct})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Apply(single); err != nil {
		t.Fatal(err)
	}
	if now, _ := h.read("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor"); now != "powersave" {
		t.Errorf("the first plan's governor %q stays", now)
	}
	if _, err := h.Restore(); err != nil {
		t.Fatal(err)
	}
	sameContent(t, h, before)
}

// steps counts what apply and restore do one after the other.
func steps(t testing.TB, do func(h *Host) error) int {
	t.Helper()
	n := 0
	h := fixture(t, "small")
	h.fault = func(string) error { n++; return nil }
	if err := do(h); err != nil {
		t.Fatal(err)
	}
	return n
}

var errFault = errors.New("a fault on purpose")

// failAt ends the work at a step, as an error would.
func failAt(h *Host, step int) {
	n := 0
	h.fault = func(string) error {
		if n++; n-1 == step {
			return errFault
		}
		return nil
	}
}

// An error at any step leaves everything as it was.
func TestFaultAtEachStep(t *testing.T) {
	apply := func(h *Host) error { _, err := h.Apply(everything(t, h)); return err }
	for step := range steps(t, apply) {
		h := fixture(t, "small")
		before := content(t, h)
		failAt(h, step)
		if err := apply(h); !errors.Is(err, errFault) {
			t.Fatalf("step %d: %v", step, err)
		}
		sameContent(t, h, before)
	}
}

// An irqbalance that does not start again undoes everything else, too.
func TestIrqbalanceFails(t *testing.T) {
	h := fixture(t, "small")
	before := content(t, h)
	p := everything(t, h)
	h.Kernel.(*fakeKernel).fail = errFault
	if _, err := h.Apply(p); !errors.Is(err, errFault) {
		t.Fatal(err)
	}
	// It could not be made to forget either: the record stays for a next time.
	h.Kernel.(*fakeKernel).fail = nil
	if _, err := h.Restore(); err != nil {
		t.Fatal(err)
	}
	sameContent(t, h, before)
}

// killedEnv says to the test's own program what to do, and where it is killed:
// "apply 3 DIR" or "restore 3 DIR".
const killedEnv = "SCON_TEST_PIN_KILLED"

// TestKilledChild is no test: it is the process that TestKillAtEachStep kills.
func TestKilledChild(t *testing.T) {
	order := os.Getenv(killedEnv)
	if order == "" {
		return
	}
	var verb, dir string
	var step int
	if _, err := fmt.Sscan(order, &verb, &step, &dir); err != nil {
		t.Fatal(err)
	}
	h := &Host{Root: dir, State: filepath.Join(dir, "state"), Kernel: &fakeKernel{}}
	n := 0
	h.fault = func(string) error {
		if n++; n-1 == step {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			select {}
		}
		return nil
	}
	if verb == "apply" {
		_, _ = h.Apply(everything(t, h))
	} else {
		_, _ = h.Restore()
	}
	t.Fatal("there is no such step")
}

// killed runs apply or restore in a process that is killed at a step.
func killed(t *testing.T, h *Host, verb string, step int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", killedEnv, verb, step, h.Root))
	out, err := cmd.CombinedOutput()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err == nil || !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("%s was not killed at step %d: %v: %s", verb, step, err, out)
	}
}

// A process that is killed at any step of apply or of restore leaves what the
// next restore needs: everything is as it was.
func TestKillAtEachStep(t *testing.T) {
	apply := func(h *Host) error { _, err := h.Apply(everything(t, h)); return err }
	applySteps := steps(t, apply)
	both := steps(t, func(h *Host) error {
		if err := apply(h); err != nil {
			return err
		}
		_, err := h.Restore()
		return err
	})
	for _, verb := range []struct {
		name  string
		steps int
	}{{"apply", applySteps}, {"restore", both - applySteps}} {
		for step := range verb.steps {
			h := fixture(t, "small")
			before := content(t, h)
			if verb.name == "restore" {
				if err := apply(h); err != nil {
					t.Fatal(err)
				}
			}
			killed(t, h, verb.name, step)
			if _, err := h.Restore(); err != nil {
				t.Fatal(err)
			}
			sameContent(t, h, before)
		}
	}
}

// A draft of the record that a kill left behind is no record.
func TestDraftIsNoRecord(t *testing.T) {
	h := fixture(t, "vm")
	if err := os.MkdirAll(h.State, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.State, ".pin.json.123"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, err := h.Inspect(); err != nil || status.Applied {
		t.Errorf("status %+v, %v", status, err)
	}
}

// Interrupts that are gone, or another's now, are left alone and said.
func TestRestoreWhatIsGone(t *testing.T) {
	h := fixture(t, "desktop")
	if _, err := h.Apply(everything(t, h)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(h.path("/sys/kernel/irq/131")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path("/sys/kernel/irq/132/actions"), []byte("nvme0q1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path("/sys/class/net/enp4s0/ifindex"), []byte("77\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := h.Restore()
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, r := range list {
		if r.Left != "" {
			left++
		}
	}
	if left != 2+8 { // two interrupts, four queues each for RPS and XPS
		t.Errorf("%d settings were left: %+v", left, list)
	}
	if now, _ := h.read("/proc/irq/132/smp_affinity_list"); now == "0-15" {
		t.Error("another's interrupt was moved")
	}
}

// After a boot only the file of irqbalance is restored.
func TestRestoreAfterBoot(t *testing.T) {
	h := fixture(t, "desktop")
	before := content(t, h)
	if _, err := h.Apply(everything(t, h)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path("/proc/sys/kernel/random/boot_id"), []byte("another\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if status, err := h.Inspect(); err != nil || !status.Booted {
		t.Errorf("status %+v, %v", status, err)
	}
	if _, err := h.Restore(); err != nil {
		t.Fatal(err)
	}
	after := content(t, h)
	if after["/etc/default/irqbalance"] != before["/etc/default/irqbalance"] {
		t.Errorf("irqbalance's settings: %s", after["/etc/default/irqbalance"])
	}
	if after["/proc/irq/131/smp_affinity_list"] == before["/proc/irq/131/smp_affinity_list"] {
		t.Error("an interrupt of another boot was moved")
	}
}

// What irqbalance's settings were is brought back to the byte.
func TestIrqbalanceSettings(t *testing.T) {
	for _, tc := range []struct {
		name    string
		content string // "-" without the file
		args    string
	}{
		{"none", "-", ""},
		{"empty", "", ""},
		{"no end of line", "IRQBALANCE_ARGS=--debug", "--debug"},
		{"comments", "# a\n#IRQBALANCE_ARGS=x\n", ""},
		{"quotes", "IRQBALANCE_ARGS='-a -b'\n\n", "-a -b"},
		{"twice", "IRQBALANCE_ARGS=1\nIRQBALANCE_ARGS=2\n", "2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &Host{Root: t.TempDir(), Kernel: &fakeKernel{}}
			path := h.path("irqbalance")
			if tc.content != "-" {
				if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before, err := h.irqbalanceArgs("irqbalance")
			if err != nil || before != tc.args {
				t.Fatalf("arguments %q, %v", before, err)
			}
			for _, args := range []string{"--banirq=7", "--banirq=7 --banirq=8"} {
				if err := h.setIrqbalance("irqbalance", args); err != nil {
					t.Fatal(err)
				}
				if now, err := h.irqbalanceArgs("irqbalance"); err != nil || now != args {
					t.Errorf("arguments are %q, %v", now, err)
				}
			}
			for range 2 { // an earlier restore may have ended there
				if err := h.setIrqbalance("irqbalance", before); err != nil {
					t.Fatal(err)
				}
			}
			after, err := os.ReadFile(path)
			if tc.content == "-" {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the file is left: %q, %v", after, err)
				}
				return
			}
			if err != nil || string(after) != tc.content {
				t.Errorf("it is %q, %v", after, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("its rights: %v, %v", info.Mode(), err)
			}
		})
	}
}

// What the kernel refuses is said, the rest is done.
func TestRefused(t *testing.T) {
	for _, err := range []error{unix.EIO, unix.EINVAL, fmt.Errorf("x: %w", ErrGone)} {
		if !refused(fmt.Errorf("set: %w", err)) {
			t.Errorf("%v is no refusal", err)
		}
	}
	if refused(nil) || refused(unix.ENOSPC) {
		t.Error("what is no refusal is one")
	}
}

// Status says what differs, and where the kernel delivers an interrupt.
func TestInspect(t *testing.T) {
	h := fixture(t, "vm")
	p, err := New(capture(t, h), Options{Policy: Single, Steer: Direct})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Apply(p); err != nil {
		t.Fatal(err)
	}
	status, err := h.Inspect()
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(map[string]bool)
	for _, s := range status.Settings {
		waiting[s.Item] = s.Waiting
	}
	// The fixture's kernel goes on delivering 26 to CPU 1.
	want := map[string]bool{"24": false, "25": false, "26": true}
	if diff := check.Diff(want, waiting); diff != "" || status.Waiting != 1 || status.Differs != 0 {
		t.Errorf("%d wait, %d differ:\n%s", status.Waiting, status.Differs, diff)
	}
	if err := os.WriteFile(h.path("/proc/irq/25/smp_affinity_list"), []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if status, err := h.Inspect(); err != nil || status.Differs != 1 || status.Settings[0].Differs != "it is 1" {
		t.Errorf("%v, %+v", err, status)
	}
}

// Two at a time: the second one says so.
func TestLocked(t *testing.T) {
	h := fixture(t, "vm")
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := h.Restore(); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
}
