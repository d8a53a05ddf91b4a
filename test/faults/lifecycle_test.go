package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The end of a daemon under load, by SIGTERM or `scon down`, loses no packet and leaves
// nothing behind.
func TestEndUnderLoad(t *testing.T) {
	t.Parallel()
	b := newBed(t, scontest.Layout{})
	f := b.StartTraffic()
	for name, end := range map[string]func(){
		"SIGTERM":   func() { signal(b, syscall.SIGTERM) },
		"scon down": func() { command(b, "down", "--state-dir", b.StateDir()) },
	} {
		b.Up()
		f.WaitExpress()
		end()
		if err := b.Daemon.Wait(); err != nil {
			t.Errorf("%s: the daemon ended with %v", name, err)
		}
		f.Proceed()
		wantNothingLeft(b)
	}
	f.WantUnbroken()
	b.WantNoInvalid()
}

// A second daemon is refused, `scon up` reports the running one, and that one
// continues.
func TestSecondStart(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	pid := b.Status().PID
	const want = "another SCON is running"
	if word := b.Launch(b.Task()).Refused(); !strings.Contains(word, want) {
		t.Errorf("the error of a second daemon is %q", word)
	}
	other := b.Task()
	other.StateDir = filepath.Join(b.Dir, "other")
	other.Socket = filepath.Join(other.StateDir, "scon.sock")
	if word := b.Launch(other).Refused(); !strings.Contains(word, want) {
		t.Errorf("the error of a second daemon with other directories is %q", word)
	}
	config := filepath.Join(b.Dir, "scon.yaml")
	if word := command(b, "up", "--state-dir", b.StateDir(), "--config", config); !strings.Contains(word, "scon is already up") {
		t.Errorf("scon up prints %q", word)
	}
	if now := b.Status().PID; now != pid {
		t.Errorf("the daemon's process is %d, before %d", now, pid)
	}
	f.WaitExpress()
	f.WantUnbroken()
}

// A daemon that starts among a thousand live connections composes them without
// breaking one.
func TestStartAmongMany(t *testing.T) {
	t.Parallel()
	const many = 1000
	b := newBed(t, scontest.Layout{Config: func(c *config.Config) { c.PerContainerShare = 100 }})
	f := b.StartTraffic()
	p := openPairs(b, 1, many)
	p.pass(t)
	b.Up()
	f.WaitExpress()
	scontest.Eventually(t, "nearly all have Conentries", func() error {
		p.pass(t)
		return atLeast(b, many*9/10)
	})
	b.Daemon.Kill()
	b.Up()
	if err := atLeast(b, many*9/10); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	p.pass(t)
	f.WantUnbroken()
	b.WantNoInvalid()
}

// Unmounting the bpffs of a running daemon removes its pins: the daemon reports that,
// nothing breaks, and the next start restores them.
func TestPinsUnmounted(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	umount := exec.Command("nsenter", "--mount="+b.Mounts(), "umount", "--lazy", "/sys/fs/bpf")
	if out, err := umount.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.Proceed()
	openPairsIn(b, startContainer(b).name, 1).pass(t)
	signal(b, syscall.SIGTERM)
	if err := b.Daemon.Wait(); err != nil {
		t.Errorf("the daemon ended with %v: %s", err, b.Daemon.Log())
	}
	f.Proceed()
	b.Up()
	f.WaitExpress()
	b.Daemon.Down()
	wantNothingLeft(b)
	f.WantUnbroken()
	b.WantNoInvalid()
}

// A daemon that cannot write its state directory fails to start with an error that
// names the directory, and leaves nothing behind. A state directory that fills up later
// has no effect.
func TestStateDirectory(t *testing.T) {
	t.Parallel()
	for name, mount := range map[string]struct{ options, fill, want string }{
		"read-only": {options: "ro", want: "read-only file system"},
		"full":      {options: "size=4k", fill: "full", want: "no space left on device"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, scontest.Layout{})
			c := b.Outgoing("tcp", 1)
			dir := b.StateDir()
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			inMounts(b, "mount", "-t", "tmpfs", "-o", mount.options, "tmpfs", dir)
			if mount.fill != "" {
				if err := os.WriteFile(b.Seen(filepath.Join(dir, mount.fill)), make([]byte, 4096), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			word := b.Launch(b.Task()).Refused()
			if !strings.Contains(word, mount.want) || !strings.Contains(word, "state") {
				t.Errorf("the error is %q", word)
			}
			wantNothingLeft(b)
			c.MustPing(5)
			inMounts(b, "umount", dir)
			b.Up()
			c.GoExpress()
			b.Daemon.Down()
		})
	}
}

// A daemon whose state directory was removed goes on. What cannot reach it names its process,
// and that ends in order.
func TestStateDirectoryRemoved(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	dir := b.StateDir()
	if err := os.RemoveAll(b.Seen(dir)); err != nil {
		t.Fatal(err)
	}
	f.Proceed()
	end := fmt.Sprintf("'kill %d' ends it", b.Daemon.Cmd.Process.Pid)
	for _, args := range [][]string{
		{"status", "--socket", filepath.Join(dir, "scon.sock")},
		{"down", "--state-dir", dir},
		{"up", "--state-dir", dir, "--config", filepath.Join(b.Dir, "scon.yaml")},
	} {
		args = append([]string{"--mount=" + b.Mounts(), "--net=" + b.Node(lab.Device), scon}, args...)
		if out, err := exec.Command("nsenter", args...).CombinedOutput(); err == nil || !strings.Contains(string(out), end) {
			t.Errorf("scon %s: %v: %s", args[3], err, out)
		}
	}
	signal(b, syscall.SIGTERM)
	if err := b.Daemon.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	wantNothingLeft(b)
	f.WantUnbroken()
}

// inMounts runs a command in the daemon's mount namespace.
func inMounts(b *scontest.Bed, args ...string) {
	b.T.Helper()
	out, err := exec.Command("nsenter", append([]string{"--mount=" + b.Mounts()}, args...)...).CombinedOutput()
	if err != nil {
		b.T.Fatalf("%v: %v: %s", args, err, out)
	}
}

// command runs scon in the daemon's namespaces and returns its output.
func command(b *scontest.Bed, args ...string) string {
	b.T.Helper()
	args = append([]string{"--mount=" + b.Mounts(), "--net=" + b.Node(lab.Device), scon}, args...)
	cmd := exec.Command("nsenter", args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.T.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}
