package express_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/scontest"
)

// portsOfBridge is how many ports the containers of TestCrowd share a bridge with;
// the kernel allows 1,023.
const portsOfBridge = 512

// crowd adds n containers without addresses to bridges of their own, each in a
// network namespace of its own, which nothing but the returned files holds.
func crowd(b *scontest.Bed, n int) (namespaces []*os.File) {
	b.T.Helper()
	b.T.Cleanup(func() {
		for _, ns := range namespaces {
			ns.Close()
		}
	})
	err := b.Do(lab.Device, func() error {
		var bridge *netlink.Bridge
		for i := range n {
			if i%portsOfBridge == 0 {
				bridge = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("crowd%d", i/portsOfBridge)}}
				if err := netlink.LinkAdd(bridge); err != nil {
					return err
				}
				if err := netlink.LinkSetUp(bridge); err != nil {
					return err
				}
			}
			ns, err := netns.New()
			if err != nil {
				return err
			}
			namespaces = append(namespaces, ns)
			port := &netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("guest%d", i), MasterIndex: bridge.Index, Flags: 1},
				PeerName:  "eth0", PeerNamespace: netlink.NsFd(ns.Fd()),
			}
			if err := netlink.LinkAdd(port); err != nil {
				return fmt.Errorf("container %d: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return namespaces
}

// A host with many containers: each is found and hooked, a connection of one goes express,
// status lists all, those that end are forgotten, and nothing is left at the end.
func TestCrowd(t *testing.T) {
	const ending = 128 // at a time: the kernel ends namespaces with its lock of rtnetlink held
	n := 256
	if os.Getenv("SCON_LONG") != "" {
		n = 4096
	}
	b := scontest.New(t, scontest.Layout{})
	start := time.Now()
	namespaces := crowd(b, n)
	t.Logf("%d containers made in %v", n, time.Since(start))

	start = time.Now()
	b.Up()
	b.Daemon.Patience = 5 * time.Minute // one RCU grace period for each hook
	hooked := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Second) {
			s := b.Status()
			at := make(map[string]int)
			for _, h := range s.Hooks {
				at[h.Dev]++
			}
			missing := ""
			for _, c := range s.Containers {
				if at[c.Dev] < 2 {
					missing = c.Dev
				}
			}
			if len(s.Containers) == want && missing == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d containers, want %d; without hooks: %q; skipped: %v", len(s.Containers), want, missing, s.Skipped)
			}
		}
	}
	hooked(n + 1)
	t.Logf("hooked in %v; the daemon has %d MB and has used %v", time.Since(start), b.Daemon.Resident()>>20, b.Daemon.ProcessorTime())
	c := b.Outgoing("tcp", 1).GoExpress()
	start = time.Now()
	b.Status()
	t.Logf("status in %v", time.Since(start))

	start = time.Now()
	for _, ns := range namespaces[:ending] {
		ns.Close()
	}
	hooked(n - ending + 1)
	t.Logf("%d of them ended in %v; the daemon has used %v", ending, time.Since(start), b.Daemon.ProcessorTime())
	c.MustPing(20)

	start = time.Now()
	b.Daemon.Down()
	t.Logf("down in %v", time.Since(start))
	c.MustPing(1)
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		if left := b.Programs(fmt.Sprintf("guest%d", n-1), at); left != 0 {
			t.Errorf("%d programs are left, %v", left, at)
		}
	}
}
