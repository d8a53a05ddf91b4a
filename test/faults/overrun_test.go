package faults

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The daemon misses no change when netlink messages are lost: when it runs again, rules
// apply, ended connections have no Conentry, and new containers are hooked. The same
// holds with minimal receive buffers throughout.
func TestOverrun(t *testing.T) {
	t.Parallel()
	const each = 100
	b := newExpress(t, scontest.Layout{Containers: 2})
	f := b.StartTraffic()
	f.WaitExpress()
	c := b.Outgoing("udp", 2).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	dead, alive := openPairs(b, 1, each), openPairs(b, 2, each)
	for _, p := range []*pairs{dead, alive} {
		scontest.Eventually(t, "nearly all have Conentries", func() error {
			p.pass(t)
			return p.want(b, each*9/10, each)
		})
	}

	signal(b, syscall.SIGSTOP)
	shrinkBuffers(b)
	changeMuch(b)
	const rule = "DOCKER-USER -p udp -s 172.17.0.3 -d 10.77.0.2 --dport "
	port := fmt.Sprint(scontest.PortOf(c.Server.LocalAddr()))
	b.Sh(lab.Device, "conntrack -D -p udp --orig-port-dst "+fmt.Sprint(dead.echo.Port()))
	b.Sh(lab.Device, "iptables-nft -I "+rule+port+" -j DROP")
	late := startContainer(b)
	wantDropped(b)
	time.Sleep(scontest.Heartbeat)
	passed := n.Arrived.Load()
	signal(b, syscall.SIGCONT)

	scontest.Eventually(t, "the Conentries of ended connections are removed", func() error { return dead.want(b, 0, 0) })
	scontest.Eventually(t, "the container is hooked", func() error { return late.hooked() })
	f.WaitExpress()
	if err := alive.want(b, each*9/10, each); err != nil {
		t.Errorf("live connections: %v", err)
	}
	if now := n.Arrived.Load(); now != passed {
		t.Errorf("%d packets passed the rule", now-passed)
	}

	for range 2 {
		b.Sh(lab.Device, "iptables-nft -D "+rule+port+" -j DROP")
		n.Proceed(t, 10)
		changeMuch(b)
		waitOriginal(c)
		b.Sh(lab.Device, "iptables-nft -I "+rule+port+" -j DROP")
		time.Sleep(scontest.Heartbeat)
		passed := n.Arrived.Load()
		f.WaitExpress()
		if now := n.Arrived.Load(); now != passed {
			t.Errorf("%d packets passed the rule", now-passed)
		}
	}
	b.Sh(lab.Device, "iptables-nft -D "+rule+port+" -j DROP")
	n.Proceed(t, 10)
	f.WantUnbroken()
	b.WantNoInvalid()
}

// want returns an error unless least to most of the connections have Conentries.
func (p *pairs) want(b *scontest.Bed, least, most int) error {
	b.T.Helper()
	got := 0
	for _, f := range b.Flows() {
		if netip.AddrPortFrom(netip.MustParseAddr(f.Orig.Dst), f.Orig.Dport) == p.echo {
			got++
		}
	}
	if got < least || got > most {
		return fmt.Errorf("%d Conentries, want %d to %d", got, least, most)
	}
	return nil
}

// hooked returns an error unless the daemon has hooked the container.
func (c *container) hooked() error {
	c.b.T.Helper()
	s := c.b.Status()
	for _, have := range s.Containers {
		if have.Dev == c.port {
			return nil
		}
	}
	return fmt.Errorf("not hooked: %s; containers: %+v, skipped: %+v", c.port, s.Containers, s.Skipped)
}

// changeMuch makes thousands of changes and reverts them.
func changeMuch(b *scontest.Bed) {
	b.T.Helper()
	var routes, rules strings.Builder
	for _, verb := range []string{"add", "del"} {
		for i := range 2000 {
			fmt.Fprintf(&routes, "route %s 10.99.%d.%d via 10.77.0.2\n", verb, i/250, i%250)
		}
	}
	for i := range 100 {
		fmt.Fprintf(&rules, "add table ip much%d\ndelete table ip much%d\n", i, i)
	}
	for file, content := range map[string]string{"routes": routes.String(), "rules": rules.String()} {
		if err := os.WriteFile(filepath.Join(b.Dir, file), []byte(content), 0o600); err != nil {
			b.T.Fatal(err)
		}
	}
	b.Sh(lab.Device, "ip -batch "+filepath.Join(b.Dir, "routes"))
	for range 20 {
		b.Sh(lab.Device, "nft -f "+filepath.Join(b.Dir, "rules"))
	}
}

// listener is a netlink socket of the daemon with multicast groups.
type listener struct {
	protocol, dropped, inode string
}

// listeners reads the daemon's sockets from /proc/net/netlink.
func listeners(b *scontest.Bed) []listener {
	b.T.Helper()
	pid := b.Daemon.Cmd.Process.Pid
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/netlink", pid))
	if err != nil {
		b.T.Fatal(err)
	}
	var found []listener
	for line := range strings.Lines(string(list)) {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		if w := strings.Fields(line); len(w) == 10 && w[3] != "00000000" && w[0] != "sk" {
			found = append(found, listener{protocol: w[1], dropped: w[8], inode: w[9]})
		}
	}
	return found
}

// shrinkBuffers sets the receive buffers of the daemon's listeners to the
// kernel's minimum.
func shrinkBuffers(b *scontest.Bed) {
	b.T.Helper()
	wanted := make(map[string]bool)
	for _, l := range listeners(b) {
		wanted["socket:["+l.inode+"]"] = true
	}
	pid := b.Daemon.Cmd.Process.Pid
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		b.T.Fatal(err)
	}
	defer unix.Close(handle)
	shrunk := 0
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, path := range fds {
		name, err := os.Readlink(path)
		if err != nil || !wanted[name] {
			continue
		}
		var number int
		if _, err := fmt.Sscan(filepath.Base(path), &number); err != nil {
			b.T.Fatal(err)
		}
		fd, err := unix.PidfdGetfd(handle, number, 0)
		if err != nil {
			b.T.Fatalf("get a socket of the daemon: %v", err)
		}
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
		unix.Close(fd)
		if err != nil {
			b.T.Fatal(err)
		}
		shrunk++
	}
	if shrunk < 3 {
		b.T.Fatalf("found only %d netlink listeners of the daemon", shrunk)
	}
}

// wantDropped fails unless the kernel has dropped messages about rules and
// about the network.
func wantDropped(b *scontest.Bed) {
	b.T.Helper()
	dropped := make(map[string]bool)
	for _, l := range listeners(b) {
		dropped[l.protocol] = dropped[l.protocol] || l.dropped != "0"
	}
	for name, protocol := range map[string]int{"rtnetlink": unix.NETLINK_ROUTE, "netfilter": unix.NETLINK_NETFILTER} {
		if !dropped[fmt.Sprint(protocol)] {
			b.T.Errorf("the kernel dropped no message of %s", name)
		}
	}
}
