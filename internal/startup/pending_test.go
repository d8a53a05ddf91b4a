package startup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// userns is a container with a user namespace of its own: a bundle, the file of its process'
// number, and the network namespace of the process.
type userns struct{ bundle, pidFile, netns string }

func newUserns(t *testing.T) (c userns) {
	t.Helper()
	c.netns = nstest.New(t)
	process := exec.Command("nsenter", "--net="+netns.Path(c.netns), "sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	eventually(t, "it is in its namespace", func() bool {
		now, err := netns.Inode(fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid))
		return err == nil && now == inode(t, c.netns)
	})
	c.bundle = writeBundle(t, fmt.Sprintf(spec, wanted, `, {"type": "user"}`))
	c.pidFile = filepath.Join(c.bundle, "pid")
	if err := os.WriteFile(c.pidFile, fmt.Append(nil, process.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func (b *bed) create(c userns) (out string, err error) {
	return b.oci("/bin/true", "create", "--bundle", c.bundle, "--pid-file", c.pidFile, "c")
}

// newAwaited returns a bed without a pool, and a container of it that waits for its start.
func newAwaited(t *testing.T) (*bed, userns) {
	t.Helper()
	b := newBed(t)
	b.withPool(0)
	c := newUserns(t)
	if out, err := b.create(c); err != nil {
		t.Fatal(err, out)
	}
	return b, c
}

// pending returns the files of devices that are made before a start.
func (b *bed) pending() []string {
	files, _ := filepath.Glob(filepath.Join(b.dir, "startup", "*", "pending", "*"))
	return files
}

// A container with a user namespace starts with its device, or not at all: also when the agent
// is killed, or ended, between its create and its start.
func TestPendingOutlivesAgent(t *testing.T) {
	for name, end := range map[string]func(*bed){"killed": (*bed).kill, "ended": (*bed).stop} {
		t.Run(name, func(t *testing.T) {
			b, c := newAwaited(t)
			end(b)
			if out, err := b.oci("/bin/true", "start", "c"); err == nil || !strings.Contains(out, "scon up") {
				t.Errorf("a start without its device: %v %s", err, out)
			}
			if out, err := b.oci("/bin/true", "start", "other"); err != nil {
				t.Errorf("another container: %v %s", err, out)
			}
			b.withPool(0)
			if out, err := b.oci("/bin/true", "start", "c"); err != nil {
				t.Fatal(err, out)
			}
			b.ping(c.netns)
			if left := b.pending(); len(left) > 0 {
				t.Errorf("after the start: %v", left)
			}
			if out, err := b.oci("/bin/true", "delete", "c"); err != nil {
				t.Fatal(err, out)
			}
			b.wantWhole(b.conf())
		})
	}
}

// The agent dies at each step of such a create and start. The create that has no answer is
// refused; the start is until the device is made.
func TestKilledPending(t *testing.T) {
	for _, at := range []string{"oci-pending", "add-leased", "add-made", "add-kept"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			b.withPool(0, faultEnv+"="+at)
			c := newUserns(t)
			out, err := b.create(c)
			if refused := at == "oci-pending"; refused != (err != nil) {
				t.Fatalf("create: %v %s", err, out)
			}
			if err == nil {
				if out, err := b.oci("/bin/true", "start", "c"); err == nil {
					t.Errorf("a start without its device: %s", out)
				}
			}
			b.kill()
			b.withPool(0)
			if err == nil {
				if out, err := b.oci("/bin/true", "start", "c"); err != nil {
					t.Fatal(err, out)
				}
				b.ping(c.netns)
			}
			if out, err := b.oci("/bin/true", "delete", "c"); err != nil {
				t.Fatal(err, out)
			}
			if left := b.pending(); len(left) > 0 {
				t.Errorf("after the delete: %v", left)
			}
			b.wantWhole(b.conf())
		})
	}
}

// What a container waits for ends with it: with its delete, also without an agent, and with its
// bundle.
func TestPendingEnds(t *testing.T) {
	for name, end := range map[string]func(*bed, userns){
		"deleted without an agent": func(b *bed, _ userns) {
			if out, err := b.oci("/bin/true", "delete", "--force", "c"); err != nil {
				b.t.Fatal(err, out)
			}
			if left := b.pending(); len(left) > 0 {
				b.t.Errorf("left: %v", left)
			}
		},
		"forgotten": func(b *bed, c userns) {
			if err := os.RemoveAll(c.bundle); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, c := newAwaited(t)
			b.kill()
			end(b, c)
			b.withPool(0)
			if left := b.pending(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if out, err := b.oci("/bin/true", "start", "c"); err != nil {
				t.Error(err, out)
			}
			b.wantWhole(b.conf())
		})
	}
}

// An ID that is a path is refused before it becomes part of a file's name.
func TestIDIsNoPath(t *testing.T) {
	b := newBed(t)
	b.withPool(0)
	c := newUserns(t)
	for _, id := range []string{"a/b", "/", "../a", "a/../../stray", "a/../../../../stray", ".", ".."} {
		out, err := b.oci("/bin/true", "create", "--bundle", c.bundle, "--pid-file", c.pidFile, id)
		if err == nil || !strings.Contains(out, "container ID") {
			t.Errorf("%q: %v %s", id, err, out)
		}
	}
	stray, err := filepath.Glob(filepath.Join(b.dir, "startup", "*", "stray"))
	if left := append(stray, b.pending()...); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A start whose device cannot be made is refused again.
func TestPendingStaysRefused(t *testing.T) {
	b, c := newAwaited(t)
	if err := os.Remove(c.pidFile); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if out, err := b.oci("/bin/true", "start", "c"); err == nil {
			t.Errorf("a start without its device: %s", out)
		}
	}
}

// A start makes no device in the namespace of a process that has the number of the container's.
func TestPendingProcessEnded(t *testing.T) {
	b, c := newAwaited(t)
	b.kill()
	b.withPool(0)
	other := newUserns(t)
	now, err := os.ReadFile(other.pidFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.pidFile, now, 0o600); err != nil { // as if the kernel had given the number again
		t.Fatal(err)
	}
	out, err := b.oci("/bin/true", "start", "c")
	if err == nil || !strings.Contains(out, "create it again") {
		t.Errorf("%v %s", err, out)
	}
	if devices := nstest.Run(t, other.netns, "ip -br link"); strings.Contains(devices, "eth0") {
		t.Errorf("the other process has %s", devices)
	}
}

// run, in which the agent hears of no start, is refused for a container with a user namespace.
func TestRunWithUserNamespace(t *testing.T) {
	b := newBed(t)
	b.withPool(0)
	c := newUserns(t)
	out, err := b.oci("/bin/true", "run", "--bundle", c.bundle, "--pid-file", c.pidFile, "c")
	if err == nil || !strings.Contains(out, "create and start") {
		t.Errorf("run: %v %s", err, out)
	}
	if left := b.pending(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A path that cannot be sent to the agent is refused.
func TestOCIUnsendablePath(t *testing.T) {
	for _, name := range []string{"a\nb", "a "} {
		b := newBed(t)
		dir := filepath.Join(writeBundle(t, fmt.Sprintf(spec, wanted, "")), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(filepath.Dir(dir), "config.json"), filepath.Join(dir, "config.json")); err != nil {
			t.Fatal(err)
		}
		b.withPool(0)
		if out, err := b.oci("/bin/true", "create", "--bundle", dir, "c"); err == nil {
			t.Errorf("%q: %s", name, out)
		}
	}
}
