package daemon_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/nstest"
)

// patience bounds every wait for what happens sooner.
const patience = 20 * time.Second

// layout is what a test needs to be built.
type layout struct {
	containers int // 1 if it is 0
	offload    bool
	clsact     bool
	config     func(*config.Config)
}

// bed is a lab with a daemon in it.
type bed struct {
	*lab.Lab
	t      *testing.T
	opts   lab.Options
	dir    string
	holder *exec.Cmd // keeps the daemon's mounts
	config config.Config
	clsact bool
	daemon *process
}

// beds counts the beds of this process, for names that differ.
var beds atomic.Uint32

// newBed builds a lab whose rules drop what conntrack calls INVALID, as many
// rules do.
func newBed(t *testing.T, l layout) *bed {
	t.Helper()
	b := &bed{
		t: t, dir: t.TempDir(), clsact: l.clsact, config: config.Default(),
		opts: lab.Options{
			Prefix:     fmt.Sprintf("scon-d%d-%d-", os.Getpid(), beds.Add(1)),
			Containers: max(l.containers, 1),
			NoOffload:  !l.offload,
		},
	}
	b.config.Connections, b.config.Admit = 1024, 4
	if l.config != nil {
		l.config(&b.config)
	}
	b.holdMounts()
	t.Cleanup(func() {
		if err := lab.Down(b.opts.Prefix); err != nil {
			t.Error(err)
		}
	})
	b.plug(b.opts.Containers)
	return b
}

// newExpress builds a lab and starts a daemon in it.
func newExpress(t *testing.T, l layout) *bed {
	t.Helper()
	b := newBed(t, l)
	b.up()
	return b
}

// plug brings the lab to a number of containers.
func (b *bed) plug(containers int) {
	b.t.Helper()
	var err error
	b.opts.Containers = containers
	if b.Lab, err = lab.Up(b.opts); err != nil {
		b.t.Fatal(err)
	}
	b.sh(lab.Device, `
		nft add table ip invalid
		nft add chain ip invalid forward { type filter hook forward priority -10 ; }
		nft add counter ip invalid seen
		nft add rule ip invalid forward ct state invalid counter name seen drop`)
}

// wantNoInvalid fails if conntrack called a packet INVALID.
func (b *bed) wantNoInvalid() {
	b.t.Helper()
	if out := b.sh(lab.Device, "nft list counter ip invalid seen"); !strings.Contains(out, "packets 0 ") {
		b.t.Errorf("conntrack called packets INVALID:\n%s", out)
	}
}

// sh runs commands in a node, one on each line and without any quoting, and
// returns what the last one printed.
func (b *bed) sh(node, commands string) string {
	b.t.Helper()
	return nstest.Run(b.t, b.Node(node), commands)
}

// holdMounts makes a mount namespace without a bpffs.
func (b *bed) holdMounts() {
	b.t.Helper()
	b.holder = exec.Command("cat")
	b.holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	stdin, err := b.holder.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.holder.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		stdin.Close()
		_ = b.holder.Wait()
	})
	if b.bpffsMounted() {
		out, err := exec.Command("nsenter", "--mount="+b.mounts(), "umount", "--all-targets", "/sys/fs/bpf").CombinedOutput()
		if err != nil {
			b.t.Fatalf("unmounting the bpffs: %v: %s", err, out)
		}
	}
}

func (b *bed) mounts() string { return fmt.Sprintf("/proc/%d/ns/mnt", b.holder.Process.Pid) }

// seen is a path as the daemon sees it.
func (b *bed) seen(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", b.holder.Process.Pid), path)
}

func (b *bed) bpffsMounted() bool {
	b.t.Helper()
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", b.holder.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.Contains(string(mounts), " /sys/fs/bpf bpf ")
}

// status is what the daemon says of itself.
func (b *bed) status() api.Status {
	b.t.Helper()
	s, err := b.daemon.Status()
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// flows are all Conentries.
func (b *bed) flows() []api.Flow {
	b.t.Helper()
	f, err := b.daemon.Flows("")
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

// container is the status of a container, by its port's name.
func (b *bed) container(n int) (c api.Container, ok bool) {
	b.t.Helper()
	for _, c := range b.status().Containers {
		if c.Dev == lab.Port(n) {
			return c, true
		}
	}
	return c, false
}

// waitHooked waits until a container is hooked.
func (b *bed) waitHooked(n int) {
	b.t.Helper()
	eventually(b.t, lab.Port(n)+" is hooked", func() error {
		if _, ok := b.container(n); !ok {
			return fmt.Errorf("containers: %+v, skipped: %+v", b.status().Containers, b.status().Skipped)
		}
		return nil
	})
}

// eventually waits until probe finds nothing wrong, and says for how long.
func eventually(t *testing.T, what string, probe func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := probe()
		took := time.Since(start)
		if err == nil {
			return took
		}
		if took > patience {
			t.Fatalf("not in %v: %s: %v", took, what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// after is time.After; a test that waits for it has failed.
func after(d time.Duration) <-chan time.Time { return time.After(d) }
