package express_test

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
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
	for _, ns := range namespaces[:n/2] { // the kernel ends them with its lock of rtnetlink held
		ns.Close()
	}
	hooked(n - n/2 + 1)
	t.Logf("half of them ended in %v; the daemon has used %v", time.Since(start), b.Daemon.ProcessorTime())
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

// While the ports of many containers are hooked, rules change all the time: they are taken in
// meanwhile, and those that concern a connection stop it at once.
func TestRulesAmongNewPorts(t *testing.T) {
	t.Parallel()
	const n = 192
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	b.Daemon.Patience = time.Minute
	outside := b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, "nft add table ip other\nnft add chain ip other c")
	start, before := time.Now(), b.Status()
	crowd(b, n)
	ended := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			case <-time.After(50 * time.Millisecond):
				b.Sh(lab.Device, fmt.Sprintf("nft add rule ip other c ip saddr 10.9.0.%d drop", i%250))
			}
		}
	})
	defer changing.Wait()
	defer close(ended)

	tested := 0
	for _, r := range slices.Concat(firewalls[:1], ports[5:7], firewalls[5:]) {
		if len(b.Status().Containers) > n {
			break
		}
		t.Run(r.name, func(t *testing.T) { r.test(b.In(t), outside) })
		tested++
	}
	scontest.Eventually(t, "all ports are hooked", func() error {
		if hooked := len(b.Status().Containers); hooked < n+2 {
			return fmt.Errorf("%d containers, want %d", hooked, n+2)
		}
		return nil
	})
	took, unknown := time.Since(start), b.Status().Rules.Unknown-before.Rules.Unknown
	t.Logf("%d rules tested in %v; for %.3f s of them rules were not known", tested, took, unknown)
	if unknown > took.Seconds()/2 || tested == 0 {
		t.Error("rules were not taken in while ports were hooked")
	}
}
