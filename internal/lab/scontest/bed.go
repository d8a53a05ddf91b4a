// Package scontest is what tests of the whole express way share. Each has a lab
// of its own, a daemon in it, and sends real traffic:
//
//	 edge                 device (daemon)                        c1
//	+-----------+    +-------------------------+    +-----------------+
//	| 10.77.0.2 |====| 10.77.0.1    172.17.0.1 |====| 172.17.0.2      |
//	+-----------+    +-------------------------+    +-----------------+
//
// The daemon is the test's program anew, or the command scon, in device and with
// mounts of its own: it can be killed, and what it leaves behind is gone with the
// test. A package that uses this one has a TestMain that calls Main.
package scontest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/nstest"
	"github.com/scon-project/scon/internal/lab"
)

// Patience bounds every wait for what happens sooner.
const Patience = 20 * time.Second

// Layout is what a test needs to be built.
type Layout struct {
	Containers int                  // 1 if it is 0
	IPv6       bool                 // with addresses of IPv6 as well
	Overlay    string               // as lab.Options.Overlay
	Uplink     string               // as lab.Options.Uplink
	Offload    bool                 // leave checksum and segmentation offloads on
	Netkit     bool                 // containers have netkit pairs
	Clsact     bool                 // hook by clsact, whatever the kernel has
	Service    bool                 // with no more capabilities than the systemd unit gives
	SCON       string               // as Task.SCON
	Config     func(*config.Config) // changes the daemon's; nil leaves it
}

// Bed is a lab with a daemon in it.
type Bed struct {
	*lab.Lab
	T      *testing.T // the test's, or of In the subtest's
	Opts   lab.Options
	Dir    string    // for the test's files
	Holder *exec.Cmd // keeps the daemon's mounts
	Config config.Config
	Clsact bool
	runner []string // command that runs the daemon's
	SCON   string
	Daemon *Process // nil before Up
}

// beds counts the beds of this process, for names that differ.
var beds atomic.Uint32

// New builds a lab whose rules drop what conntrack calls INVALID, as many
// rules do.
func New(t *testing.T, l Layout) *Bed {
	t.Helper()
	b := &Bed{
		T: t, Dir: t.TempDir(), Clsact: l.Clsact, SCON: l.SCON, Config: config.Default(),
		Opts: lab.Options{
			Prefix:     fmt.Sprintf("scon-d%d-%d-", os.Getpid(), beds.Add(1)),
			Containers: max(l.Containers, 1),
			NoOffload:  !l.Offload,
			IPv6:       l.IPv6,
			Netkit:     l.netkits(),
			Overlay:    l.Overlay,
			Uplink:     l.Uplink,
		},
	}
	b.Config.Connections, b.Config.Admit = 1024, 4
	if l.Config != nil {
		l.Config(&b.Config)
	}
	t.Cleanup(func() {
		if err := lab.Down(b.Opts.Prefix); err != nil {
			t.Error(err)
		}
	})
	b.Plug(b.Opts.Containers)
	b.holdMounts()
	if l.Service {
		b.mountBPFFS()
		b.runner = asService(t)
	}
	return b
}

// NeedNetkit skips a test on a kernel without netkit.
func NeedNetkit(t *testing.T) {
	t.Helper()
	if !lab.HasNetkit() {
		t.Skip("this kernel has no netkit (Linux 6.7, CONFIG_NETKIT)")
	}
}

// netkits is how many containers have netkit pairs.
func (l Layout) netkits() int {
	if l.Netkit {
		return max(l.Containers, 1)
	}
	return 0
}

// NewExpress builds a lab and starts a daemon in it.
func NewExpress(t *testing.T, l Layout) *Bed {
	t.Helper()
	b := New(t, l)
	b.Up()
	return b
}

// Plug brings the lab to a number of containers.
func (b *Bed) Plug(containers int) {
	b.T.Helper()
	var err error
	b.Opts.Containers = containers
	if b.Lab, err = lab.Up(b.Opts); err != nil {
		b.T.Fatal(err)
	}
	for _, family := range b.families() {
		b.Sh(lab.Device, strings.ReplaceAll(`
			nft add table ip invalid
			nft add chain ip invalid forward { type filter hook forward priority -10 ; }
			nft add counter ip invalid seen
			nft add rule ip invalid forward ct state invalid counter name seen drop`, " ip ", " "+family+" "))
	}
}

// families are those of nftables that the lab has addresses of.
func (b *Bed) families() []string {
	if b.Opts.IPv6 {
		return []string{"ip", "ip6"}
	}
	return []string{"ip"}
}

// WantNoInvalid fails if conntrack called a packet INVALID.
func (b *Bed) WantNoInvalid() {
	b.T.Helper()
	for _, family := range b.families() {
		if out := b.Sh(lab.Device, "nft list counter "+family+" invalid seen"); !strings.Contains(out, "packets 0 ") {
			b.T.Errorf("conntrack called packets INVALID:\n%s", out)
		}
	}
}

// Sh runs commands in a node, one on each line and without any quoting, and
// returns what the last one printed.
func (b *Bed) Sh(node, commands string) string {
	b.T.Helper()
	return nstest.Run(b.T, b.Node(node), commands)
}

// holdMounts makes a mount namespace without a bpffs, in which namespaces that
// get a name later appear.
func (b *Bed) holdMounts() {
	b.T.Helper()
	b.Holder = exec.Command("unshare", "--mount", "--propagation", "slave", "cat")
	stdin, err := b.Holder.StdinPipe()
	if err != nil {
		b.T.Fatal(err)
	}
	stdout, err := b.Holder.StdoutPipe()
	if err != nil {
		b.T.Fatal(err)
	}
	if err := b.Holder.Start(); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() {
		stdin.Close()
		_ = b.Holder.Wait()
	})
	// cat answers from within.
	if _, err := fmt.Fprintln(stdin); err != nil {
		b.T.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		b.T.Fatalf("making a mount namespace: %v", err)
	}
	if b.BPFFSMounted() {
		out, err := exec.Command("nsenter", "--mount="+b.Mounts(), "umount", "--all-targets", "/sys/fs/bpf").CombinedOutput()
		if err != nil {
			b.T.Fatalf("unmounting the bpffs: %v: %s", err, out)
		}
	}
}

// Mounts is the path of the daemon's mount namespace.
func (b *Bed) Mounts() string { return fmt.Sprintf("/proc/%d/ns/mnt", b.Holder.Process.Pid) }

// Seen is a path as the daemon sees it.
func (b *Bed) Seen(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", b.Holder.Process.Pid), path)
}

// BPFFSMounted tells whether the daemon sees a bpffs.
func (b *Bed) BPFFSMounted() bool {
	b.T.Helper()
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", b.Holder.Process.Pid))
	if err != nil {
		b.T.Fatal(err)
	}
	return strings.Contains(string(mounts), " /sys/fs/bpf bpf ")
}

// Status is what the daemon says of itself.
func (b *Bed) Status() api.Status {
	b.T.Helper()
	s, err := b.Daemon.Status()
	if err != nil {
		b.T.Fatal(err)
	}
	return s
}

// Flows are all Conentries.
func (b *Bed) Flows() []api.Flow {
	b.T.Helper()
	f, err := b.Daemon.Flows("")
	if err != nil {
		b.T.Fatal(err)
	}
	return f
}

// Container is the status of a container, by its port's name.
func (b *Bed) Container(n int) (c api.Container, ok bool) {
	b.T.Helper()
	for _, c := range b.Status().Containers {
		if c.Dev == lab.Port(n) {
			return c, true
		}
	}
	return c, false
}

// WantReason fails unless container 1's port has counted a reason.
func (b *Bed) WantReason(reason string, before uint64) {
	b.T.Helper()
	if c, _ := b.Container(1); c.Reasons[reason] <= before {
		b.T.Errorf("no packet counted as %s (before: %d): %v", reason, before, c.Reasons)
	}
}

// WaitHooked waits until a container is hooked.
func (b *Bed) WaitHooked(n int) {
	b.T.Helper()
	Eventually(b.T, lab.Port(n)+" is hooked", func() error {
		if _, ok := b.Container(n); !ok {
			return fmt.Errorf("containers: %+v, skipped: %+v", b.Status().Containers, b.Status().Skipped)
		}
		return nil
	})
}

// Eventually waits until probe finds nothing wrong, and says for how long.
func Eventually(t *testing.T, what string, probe func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := probe()
		took := time.Since(start)
		if err == nil {
			return took
		}
		if took > Patience {
			t.Fatalf("not in %v: %s: %v", took, what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// after is time.After; a test that waits for it has failed.
func after(d time.Duration) <-chan time.Time { return time.After(d) }

// In is the bed for a subtest.
func (b *Bed) In(t *testing.T) *Bed {
	sub, daemon := *b, *b.Daemon
	sub.T, daemon.t = t, t
	sub.Daemon = &daemon
	return &sub
}
