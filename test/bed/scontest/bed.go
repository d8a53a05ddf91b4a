// Package scontest is the fixture of the end-to-end tests of the express path.
// Each test has its own lab with a daemon in it and sends real traffic:
//
//	 edge                 device (daemon)                        c1
//	+-----------+    +-------------------------+    +-----------------+
//	| 10.77.0.2 |====| 10.77.0.1    172.17.0.1 |====| 172.17.0.2      |
//	+-----------+    +-------------------------+    +-----------------+
//
// The daemon is the test binary executed again, or the command scon. It runs in
// node device with a mount namespace of its own: it can be killed, and the end of
// the test removes everything that it leaves behind. A package that uses this one
// has a TestMain that calls Main.
package scontest

import (
	"cmp"
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
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Patience is the timeout of every wait. One lock of the kernel is for the devices of all
// namespaces: on a busy machine an end that detaches 40 programs waits for it 20 s.
const Patience = time.Minute

// Layout describes the lab and the daemon that a test needs.
type Layout struct {
	Containers int                  // 1 if it is 0
	IPv6       bool                 // IPv6 addresses as well
	Overlay    string               // as lab.Options.Overlay
	Uplink     string               // as lab.Options.Uplink
	Offload    bool                 // leave checksum and segmentation offloads on
	Netkit     bool                 // containers have netkit pairs
	Clsact     bool                 // attach by clsact, even if the kernel has tcx
	PageSlots  int                  // slots of each page of the table that are used, 0 for all: with few it grows soon
	Service    bool                 // run the services with the capabilities of their systemd units
	SCON       string               // as Task.SCON
	Prefix     string               // begins the nodes' names; "" for one that no other bed has
	Config     func(*config.Config) // modifies the daemon's configuration; may be nil
}

// Bed is a lab with a daemon in it.
type Bed struct {
	*lab.Lab
	T      *testing.T // of the test; after In, of the subtest
	Opts   lab.Options
	Dir    string    // files of the test
	Holder *exec.Cmd // process that holds the daemon's mount namespace
	Config config.Config
	Clsact bool
	Pages  int // Layout.PageSlots
	SCON   string
	// Without is a capability that the services do not get; with Layout.Service.
	Without string
	limited bool     // Layout.Service
	Daemon  *Process // nil before Up
}

// beds counts the beds of this process, for unique names.
var beds atomic.Uint32

// inMemory makes a directory that ends with the test. State directories are in memory, as
// /run is: where the disk's file system is ext4 with discard, unlink(2) waits for the disk
// (ext4_free_blocks in fs/ext4/mballoc.c), on a busy one for longer than a test does.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "scon-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// New builds a lab whose rules drop packets that conntrack marks INVALID, as many
// rule sets do.
func New(t *testing.T, l Layout) *Bed {
	t.Helper()
	b := &Bed{
		T: t, Dir: inMemory(t), Clsact: l.Clsact, Pages: l.PageSlots, SCON: l.SCON, Config: config.Default(),
		Opts: lab.Options{
			Prefix:     cmp.Or(l.Prefix, fmt.Sprintf("scon-d%d-%d-", os.Getpid(), beds.Add(1))),
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
		b.mountSys()
		b.limited = true
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

// netkits returns the number of containers with netkit pairs.
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

// Plug adds or removes containers until the lab has that many.
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

// families returns the nftables families that the lab has addresses of.
func (b *Bed) families() []string {
	if b.Opts.IPv6 {
		return []string{"ip", "ip6"}
	}
	return []string{"ip"}
}

// WantNoInvalid fails if conntrack marked a packet INVALID.
func (b *Bed) WantNoInvalid() {
	b.T.Helper()
	for _, family := range b.families() {
		if out := b.Sh(lab.Device, "nft list counter "+family+" invalid seen"); !strings.Contains(out, "packets 0 ") {
			b.T.Errorf("conntrack marked packets INVALID:\n%s", out)
		}
	}
}

// Sh runs commands in a node, one a line and without quoting, and returns the
// output of the last one.
func (b *Bed) Sh(node, commands string) string {
	b.T.Helper()
	return nstest.Run(b.T, b.Node(node), commands)
}

// holdMounts makes a mount namespace without a bpffs. Network namespaces that are
// named later appear in it.
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
	// cat replies once it runs in the namespace.
	if _, err := fmt.Fprintln(stdin); err != nil {
		b.T.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		b.T.Fatalf("make a mount namespace: %v", err)
	}
	for b.BPFFSMounted() { // one may cover the machine's
		out, err := exec.Command("nsenter", "--mount="+b.Mounts(), "umount", "--all-targets", "/sys/fs/bpf").CombinedOutput()
		if err != nil {
			b.T.Fatalf("unmount the bpffs: %v: %s", err, out)
		}
	}
}

// Mounts returns the path of the daemon's mount namespace.
func (b *Bed) Mounts() string { return fmt.Sprintf("/proc/%d/ns/mnt", b.Holder.Process.Pid) }

// Seen returns the path of a file in the daemon's mount namespace.
func (b *Bed) Seen(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", b.Holder.Process.Pid), path)
}

// BPFFSMounted reports whether the daemon's mount namespace has a bpffs.
func (b *Bed) BPFFSMounted() bool {
	b.T.Helper()
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", b.Holder.Process.Pid))
	if err != nil {
		b.T.Fatal(err)
	}
	return strings.Contains(string(mounts), " /sys/fs/bpf bpf ")
}

// Status returns the daemon's status.
func (b *Bed) Status() api.Status {
	b.T.Helper()
	s, err := b.Daemon.Status()
	if err != nil {
		b.T.Fatal(err)
	}
	return s
}

// Flows returns all Conentries.
func (b *Bed) Flows() []api.Flow {
	b.T.Helper()
	f, err := b.Daemon.Flows("")
	if err != nil {
		b.T.Fatal(err)
	}
	return f
}

// Container returns the status of the n-th container.
func (b *Bed) Container(n int) (c api.Container, ok bool) {
	b.T.Helper()
	for _, c := range b.Status().Containers {
		if c.Dev == lab.Port(n) {
			return c, true
		}
	}
	return c, false
}

// WantReason fails unless the counter of a reason at container 1's port has grown.
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

// Eventually waits until probe returns no error, and returns the time it took.
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
			t.Fatalf("%s: not within %v: %v", what, took, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// after is time.After. A test that waits until the end of it has failed.
func after(d time.Duration) <-chan time.Time { return time.After(d) }

// In returns the bed for a subtest.
func (b *Bed) In(t *testing.T) *Bed {
	sub, daemon := *b, *b.Daemon
	sub.T, daemon.t = t, t
	sub.Daemon = &daemon
	return &sub
}
