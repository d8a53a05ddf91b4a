package express_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// messages sends messages at an interval, each answered, and returns how many of
// those from the fourth on had no regular packet in either direction, as conntrack
// counts them. It leaves out messages after a change: other processes of this machine
// release the lock of iptables-legacy.
func messages(t *testing.T, c *scontest.Connection, interval time.Duration, n int) (express, of int) {
	t.Helper()
	begin := time.Now()
	var before [2]uint64
	var generation uint32
	for i := range n {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * interval)))
		c.MustPing(1)
		time.Sleep(interval / 10) // acknowledgements
		f, err := c.Flow()
		now := c.B.Status().Generation
		if i >= 3 && now == generation {
			of++
			if err == nil && *f.RegularPackets == before {
				express++
			}
		}
		generation = now
		if err == nil {
			before = *f.RegularPackets
		}
	}
	return express, of
}

// A device that reports once a second goes express, as the paper's Fig. 10 has it.
func TestSlowFlows(t *testing.T) {
	t.Parallel()
	reports(t, time.Second, 24, 0.9)
}

// One that reports every 10 s does, too. Once a minute is logged only: the lease of 45 s has
// ended each time.
func TestSlowestFlows(t *testing.T) {
	t.Parallel()
	if os.Getenv("SCON_LONG") == "" {
		t.Skip("missing: SCON_LONG; this test takes nine minutes")
	}
	reports(t, 10*time.Second, 19, 0.8)
	reports(t, time.Minute, 9, 0)
}

// reports sends n messages at an interval, in both directions, and expects that at least the
// share goes express.
func reports(t *testing.T, interval time.Duration, n int, share float64) {
	t.Helper()
	for name, connect := range scontest.Directions {
		t.Run(fmt.Sprintf("%v %s", interval, name), func(t *testing.T) {
			t.Parallel()
			b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Admit = config.Default().Admit }})
			b.Sh(lab.Device, "sysctl -q -w net.netfilter.nf_conntrack_acct=1")
			c := connect(b, "tcp", 1)
			express, of := messages(t, c, interval, n)
			t.Logf("%d of %d messages went express; %+v", express, of, c.MustFlow())
			if float64(express) < share*float64(of) {
				t.Errorf("fewer than %.2f", share)
			}
		})
	}
}

// wantLease waits until the lease of a connection, which has traffic, is bounded by
// something: by its packets only where they are very many. Conntrack's timeouts are of
// whole seconds.
func wantLease(t *testing.T, c *scontest.Connection, bound string, lease time.Duration) {
	t.Helper()
	scontest.Eventually(t, fmt.Sprintf("a lease of %v by %s", lease, bound), func() error {
		time.Sleep(50 * time.Millisecond)
		if err := c.Ping(); err != nil {
			t.Fatal(err)
		}
		f, err := c.Flow()
		shorter := lease - time.Duration(f.LeaseLimitMS)*time.Millisecond
		if err == nil && (f.LeaseBound != bound || shorter < 0 || shorter >= time.Second) {
			err = fmt.Errorf("%+v", f)
		}
		return err
	})
}

// A connection of UDP without replies loses its Conentry when its timeout is lowered so that
// conntrack would forget it between two regular packets; one that is a stream keeps it, and its
// lease.
func TestTimeoutWithoutReplies(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	stream, c := b.Outgoing("udp", 1), b.Outgoing("udp", 1)
	wantLease(t, stream, composer.BoundByConntrack, 40*time.Second)
	scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	scontest.Eventually(t, "it goes express", func() error {
		f, err := c.Flow()
		if err == nil && f.ExpressPackets[0] == 0 {
			err = errors.New("no packet has")
		}
		return err
	})
	before := trackedAs(t, c)
	b.Sh(lab.Device, "sysctl -q -w net.netfilter.nf_conntrack_udp_timeout=1")
	c.WaitGone()
	if after := trackedAs(t, c); after != before {
		t.Errorf("conntrack knew it as %d, and knows it as %d now", before, after)
	}
	wantLease(t, stream, composer.BoundByConntrack, 40*time.Second)
}

// trackedAs returns conntrack's number of an outgoing connection.
func trackedAs(t *testing.T, c *scontest.Connection) uint32 {
	t.Helper()
	var conn conntrack.Conn
	err := c.B.Do(lab.Device, func() error {
		ct, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer ct.Close()
		conn, err = ct.Get(conntrack.Tuple{
			Proto: unix.IPPROTO_UDP, Src: netip.MustParseAddrPort(c.Client.LocalAddr().String()), Dst: netip.MustParseAddrPort(c.Client.RemoteAddr().String()),
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn.ID
}

// What bounds a connection's lease is found, and the lease is short where something
// may matter that nobody announces.
func TestLease(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	tcp, udp := b.Outgoing("tcp", 1), b.Outgoing("udp", 1)
	wantLease(t, tcp, composer.BoundBySetting, 45*time.Second)
	wantLease(t, udp, composer.BoundByConntrack, 40*time.Second) // once it is a stream
	b.Sh(lab.Device, "sysctl -q -w net.netfilter.nf_conntrack_udp_timeout_stream=60")
	wantLease(t, udp, composer.BoundByConntrack, 20*time.Second)
	b.Sh(lab.Device, "sysctl -q -w net.ipv4.neigh.eth0.base_reachable_time_ms=2000")
	wantLease(t, tcp, composer.BoundByReachable, 3*time.Second)
	b.Sh(lab.Device, "sysctl -q -w net.ipv4.neigh.eth0.base_reachable_time_ms=30000")
	b.Sh(lab.Device, "sysctl -q -w net.ipv4.neigh.docker0.gc_stale_time=20")
	wantLease(t, tcp, composer.BoundByNeighbour, 15*time.Second)
	for _, rule := range []struct{ add, remove string }{
		{"ipset create quiet hash:ip\niptables-nft -I DOCKER-USER -p tcp -m set --match-set quiet src -j DROP", "iptables-nft -D DOCKER-USER 1"},
		{`nft add table ip quiet
			nft add chain ip quiet f { type filter hook forward priority 0 ; }
			nft add rule ip quiet f ip protocol tcp ct label 7 drop`, "nft delete table ip quiet"},
		{`nft add table ip quiet
			nft add set ip quiet s { type ipv4_addr; timeout 1h; }
			nft add chain ip quiet f { type filter hook forward priority 0 ; }
			nft add rule ip quiet f ip protocol tcp ip saddr @s drop`, "nft delete table ip quiet"},
	} {
		b.Sh(lab.Device, rule.add)
		wantLease(t, tcp, composer.BoundByRule, time.Second)
		wantLease(t, udp, composer.BoundByNeighbour, 15*time.Second) // no rule touches it
		b.Sh(lab.Device, rule.remove)
		wantLease(t, tcp, composer.BoundByNeighbour, 15*time.Second)
	}
	// Conntrack is asked for marks.
	b.Sh(lab.Device, "iptables-nft -I DOCKER-USER -p tcp -m connmark --mark 7 -j DROP")
	wantLease(t, tcp, composer.BoundByNeighbour, 15*time.Second)
	b.Sh(lab.Device, "ipset create another hash:ip\niptables-nft -I DOCKER-USER -p tcp -m set --match-set another src -j DROP")
	wantLease(t, tcp, composer.BoundByRule, time.Second)
	x, err := b.Daemon.Explain(fmt.Sprintf("tcp:172.17.0.2:%d", tcp.Port()))
	if text := fmt.Sprint(x.Findings); err != nil || !strings.Contains(text, "goes regular every 1.0 s") || !strings.Contains(text, "-m set") {
		t.Errorf("explained as %s, %v", text, err)
	}
	b.Sh(lab.Device, "env XTABLES_LOCKFILE=/dev/null iptables-legacy -L")
	wantLease(t, udp, composer.BoundByLegacy, time.Second)
}

// Conntrack does not tell of timeouts that a rule has chosen, which may be shorter than those
// that it has: while data is on its way, here.
func TestTimeoutPolicy(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Sh(lab.Device, `
		nft add table ip brief
		nft add ct timeout ip brief brief { protocol tcp ; policy = { established : 300, unack : 5 } ; }
		nft add chain ip brief p { type filter hook prerouting priority -150 ; }
		nft add rule ip brief p ip protocol tcp ct timeout set brief`)
	c := b.Outgoing("tcp", 1)
	c.WaitExpress(func() error { return scontest.Pass(c.Client, c.Server, 1) }) // an upload
	scontest.Eventually(t, "all has arrived, for conntrack as well", func() error {
		if f := c.MustFlow(); f.IdleMS < 3000 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	wantLease(t, c, composer.BoundByPolicy, time.Second)
}

// A connection whose packets end its leases says so, also to those who list it.
func TestLeaseByPackets(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.LeasePackets = 16 }})
	tcp := b.Outgoing("tcp", 1)
	wantLease(t, tcp, composer.BoundByPackets, 45*time.Second)
	x, err := b.Daemon.Explain(fmt.Sprintf("tcp:172.17.0.2:%d", tcp.Port()))
	if text := fmt.Sprint(x.Findings); err != nil || !strings.Contains(text, "one of 16 packets of each direction goes regular") || !strings.Contains(text, "lease_packets") {
		t.Errorf("explained as %s, %v", text, err)
	}
}

// hasSetting reports whether this kernel has a setting.
func hasSetting(name string) bool {
	name = strings.NewReplacer("docker0", "all", "eth0", "all", ".", "/").Replace(name)
	_, err := os.Stat("/proc/sys/" + name)
	return err == nil
}

// Settings that the kernel does not announce make decisions stale.
func TestSilentSetting(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Outgoing("udp", 1).GoExpress()
	for _, s := range []struct{ setting, value string }{
		{"net.ipv4.conf.docker0.accept_local", "1"},
		{"net.ipv4.conf.all.route_localnet", "1"},
		{"net.ipv4.fib_multipath_hash_policy", "1"},
		{"net.ipv4.fib_multipath_hash_seed", "7"},       // Linux 6.11
		{"net.ipv6.conf.docker0.force_forwarding", "1"}, // Linux 6.17
		{"net.ipv6.conf.eth0.mtu", "1400"},
	} {
		setting := s.setting
		if !hasSetting(setting) {
			t.Logf("this kernel has no %s", setting)
			continue
		}
		before := b.Status().Generation
		since := time.Now()
		b.Sh(lab.Device, "sysctl -q -w "+setting+"="+s.value)
		scontest.Eventually(t, setting+" makes decisions stale", func() error {
			if b.Status().Generation == before {
				return fmt.Errorf("generation %d", before)
			}
			return nil
		})
		t.Logf("%s: after %v", setting, time.Since(since))
	}
}

// neverForgets exchanges datagrams for a time, in which device must not forget what the
// connection needs of its neighbours and of its bridge's table.
func neverForgets(t *testing.T, c *scontest.Connection, d time.Duration) {
	t.Helper()
	updates, done := make(chan netlink.NeighUpdate), make(chan struct{})
	if err := c.B.Do(lab.Device, func() error { return netlink.NeighSubscribe(updates, done) }); err != nil {
		t.Fatal(err)
	}
	forgotten := make(chan []string)
	go func() {
		var all []string
		for u := range updates {
			ip, _ := netip.AddrFromSlice(u.IP)
			needed := u.Family == unix.AF_BRIDGE && u.HardwareAddr.String() == containerMAC ||
				slices.Contains([]netip.Addr{lab.ContainerAddr(1), lab.EdgeAddr, lab.ContainerAddr6(1), lab.EdgeAddr6}, ip.Unmap())
			if needed && (u.Type == unix.RTM_DELNEIGH || u.State == netlink.NUD_FAILED) {
				all = append(all, fmt.Sprintf("%v %v", u.HardwareAddr, u.IP))
			}
		}
		forgotten <- all
	}()
	c.GoExpress()
	before := c.MustFlow().ExpressPackets
	sent := 0
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c.MustPing(1)
		sent++
	}
	c.GoExpress()
	close(done)
	if all := <-forgotten; len(all) > 0 {
		t.Errorf("device has forgotten %v", all)
	}
	after := c.MustFlow().ExpressPackets
	t.Logf("of %d packets %d and %d went express", sent, after[0]-before[0], after[1]-before[1])
}

// A bridge does not forget a container whose connection is express for longer than it
// keeps a MAC address that no packet has.
func TestLeaseKeepsAlive(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	const ageing = 6 * time.Second
	b.Sh(lab.Device, "ip link set docker0 type bridge ageing_time 600")
	b.Sh(lab.Container(1), fmt.Sprintf("ip neigh replace 172.17.0.1 dev eth0 nud permanent lladdr %v", b.BridgeMAC())) // it asks nobody
	c := b.Outgoing("udp", 1)
	wantLease(t, c, composer.BoundByTable, ageing/3)
	neverForgets(t, c, 3*ageing)
}

// believed sets base_reachable_time of a device's neighbours until the time for which the
// kernel believes one, a random half to one and a half of it (neigh_rand_reach_time in
// net/core/neighbour.c), is at most so.
func believed(b *scontest.Bed, dev, version, family string, base, most time.Duration) {
	b.T.Helper()
	for drawn := most + 1; drawn > most; {
		b.Sh(lab.Device, fmt.Sprintf("sysctl -q -w net.%s.neigh.%s.base_reachable_time_ms=%d", version, dev, base.Milliseconds()))
		_, text, _ := strings.Cut(b.Sh(lab.Device, fmt.Sprintf("ip -family %s ntable show dev %s", family, dev)), " reachable ")
		var ms int64
		if _, err := fmt.Sscan(text, &ms); err != nil {
			b.T.Fatalf("%v: %q", err, text)
		}
		drawn = time.Duration(ms) * time.Millisecond
	}
}

// Nor does the kernel forget the neighbours of such a connection, though it keeps unused
// ones for a short time only and has more of them than it wants.
func TestLeaseKeepsNeighbours(t *testing.T) {
	t.Parallel()
	// The kernel looks for unused neighbours twice in base_reachable_time, which is 30 s of
	// the whole machine's. While one is REACHABLE it does not note packets: one that is so for
	// nearly a lease may be forgotten in the next, and is resolved again. So that is as short
	// as it may be without bounding the lease itself, and what the kernel draws is shorter.
	const kept, looks, believe = 16 * time.Second, 36 * time.Second, 9 * time.Second
	for name, connect := range map[string]func(b *scontest.Bed) *scontest.Connection{
		"IPv4": func(b *scontest.Bed) *scontest.Connection { return b.Outgoing("udp", 1) },
		"IPv6": func(b *scontest.Bed) *scontest.Connection { return b.Outgoing6("udp", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scontest.NewExpress(t, scontest.Layout{IPv6: true})
			for _, dev := range []string{lab.Bridge, lab.Uplink} {
				for version, family := range map[string]string{"ipv4": "inet", "ipv6": "inet6"} {
					b.Sh(lab.Device, fmt.Sprintf("sysctl -q -w net.%[1]s.neigh.%[2]s.gc_stale_time=%[3]d net.%[1]s.neigh.%[2]s.delay_first_probe_time=1",
						version, dev, kept/time.Second))
					believed(b, dev, version, family, 8*time.Second, believe)
				}
			}
			var others strings.Builder // gc_thresh1 is 128
			for i := range 200 {
				fmt.Fprintf(&others, "ip neigh add 172.17.200.%[1]d lladdr 02:00:00:00:00:01 dev docker0 nud permanent\nip neigh add fd00:17::%[1]d:1 lladdr 02:00:00:00:00:01 dev docker0 nud permanent\n", i+1)
			}
			b.Sh(lab.Device, others.String())
			c := connect(b)
			wantLease(t, c, composer.BoundByNeighbour, kept*3/4)
			neverForgets(t, c, looks)
		})
	}
}
