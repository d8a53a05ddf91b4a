package express_test

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// shortcuts counts the hooks in transmit calls of netkit containers.
func shortcuts(b *scontest.Bed) (n int) {
	for _, h := range b.Status().Hooks {
		if h.Hook == "from_netkit" {
			n++
		}
	}
	return n
}

// received counts the packets that came in by the container's port. Those that
// leave from its transmit call do not.
func received(b *scontest.Bed) (n uint64) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		l, err := netlink.LinkByName(lab.Port(1))
		if err == nil {
			n = l.Attrs().Statistics.RxPackets
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return n
}

// A netkit pair that drops packets, from before the start or by a change, drops them with
// SCON as well.
func TestNetkitPolicy(t *testing.T) {
	t.Parallel()
	scontest.NeedNetkit(t)
	b := scontest.New(t, scontest.Layout{Netkit: true})
	set := func(own, peer netlink.NetkitPolicy) {
		t.Helper()
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(unix.IFLA_INFO_KIND, nl.ZeroTerminated("netkit"))
		data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
		data.AddRtAttr(nl.IFLA_NETKIT_POLICY, nl.Uint32Attr(uint32(own)))
		data.AddRtAttr(nl.IFLA_NETKIT_PEER_POLICY, nl.Uint32Attr(uint32(peer)))
		setLink(b, unix.AF_UNSPEC, unix.RTM_NEWLINK, lab.Port(1), info)
	}
	const forward, blackhole = netlink.NETKIT_POLICY_FORWARD, netlink.NETKIT_POLICY_BLACKHOLE
	c := b.Outgoing("udp", 1)
	set(forward, blackhole)
	b.Up()
	for _, policy := range []struct{ own, peer netlink.NetkitPolicy }{{forward, blackhole}, {blackhole, forward}} {
		set(policy.own, policy.peer)
		from, to := c.Client, c.Server
		if policy.own == blackhole {
			from, to = to, from
		}
		waitLost(t, from, to)
		set(forward, forward)
		b.WaitHooked(1)
		c.GoExpress()
	}
}

// Packets of a netkit container go express in both directions, and leave from
// its own transmit call.
func TestNetkit(t *testing.T) {
	t.Parallel()
	scontest.NeedNetkit(t)
	for name, l := range map[string]scontest.Layout{
		"checksums verified": {Netkit: true},
		"offloads":           {Netkit: true, Offload: true},
		"IPv6":               {Netkit: true, IPv6: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := scontest.NewExpress(t, l)
			if n := shortcuts(b); n != 1 {
				t.Fatalf("%d hooks from_netkit: %+v", n, b.Status().Hooks)
			}
			arriveBothDirections(t, b)
			c := b.Outgoing("udp", 1).GoExpress()
			const pings = 200
			scontest.Eventually(t, "packets leave the transmit call", func() error {
				before, express := received(b), c.MustFlow().ExpressPackets
				c.MustPing(pings)
				by, now := received(b)-before, c.MustFlow().ExpressPackets
				if by > pings/10 || now[0]-express[0] < pings*9/10 || now[1]-express[1] < pings*9/10 {
					return fmt.Errorf("%d of %d came in by the port, express were %d and %d", by, pings, now[0]-express[0], now[1]-express[1])
				}
				return nil
			})
			b.WantNoInvalid()
		})
	}
}

// Programs of others at the port, and at the host's end of the pair, see every
// packet, and packets stay express.
func TestNetkitForeign(t *testing.T) {
	t.Parallel()
	scontest.NeedNetkit(t)
	b := scontest.NewExpress(t, scontest.Layout{Netkit: true})
	c := b.Outgoing("udp", 1).GoExpress()
	sees := func(theirs counter, l link.Link) {
		t.Helper()
		theirs.sees(t, c)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("at the port", func(t *testing.T) {
		theirs := newCounter(t)
		l := theirs.attach(b, lab.Port(1), ebpf.AttachTCXIngress, link.Tail())
		scontest.Eventually(t, "the hook is taken away", func() error {
			if n := shortcuts(b); n != 0 {
				return fmt.Errorf("%d are left", n)
			}
			return nil
		})
		sees(theirs, l)
		scontest.Eventually(t, "the hook is back", func() error {
			if n := shortcuts(b); n != 1 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		c.GoExpress()
	})
	t.Run("behind it", func(t *testing.T) {
		theirs := newCounter(t)
		sees(theirs, theirs.attachNetkit(b, ebpf.AttachNetkitPeer))
		c.GoExpress()
	})
	t.Run("at the pair", func(t *testing.T) {
		theirs := newCounter(t)
		sees(theirs, theirs.attachNetkit(b, ebpf.AttachNetkitPrimary))
	})
}

// attachNetkit attaches the program to the container's pair, after those that
// are there.
func (c counter) attachNetkit(b *scontest.Bed, at ebpf.AttachType) (l link.Link) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		dev, err := netlink.LinkByName(lab.Port(1))
		if err != nil {
			return err
		}
		l, err = link.AttachNetkit(link.NetkitOptions{Interface: dev.Attrs().Index, Program: c.Program, Attach: at})
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return l
}

// A killed daemon leaves the hook. The next one takes it over or removes it.
func TestNetkitRestart(t *testing.T) {
	t.Parallel()
	scontest.NeedNetkit(t)
	b := scontest.NewExpress(t, scontest.Layout{Netkit: true})
	c := b.Outgoing("tcp", 1).GoExpress()
	b.Daemon.Kill()
	c.MustPing(20)
	b.Up()
	c.GoExpress()
	if n := shortcuts(b); n != 1 {
		t.Errorf("%d hooks from_netkit", n)
	}
	b.Daemon.Down()
	err := b.Do(lab.Device, func() error {
		dev, err := netlink.LinkByName(lab.Port(1))
		if err != nil {
			return err
		}
		r, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: ebpf.AttachNetkitPeer})
		if err == nil && len(r.Programs) != 0 {
			t.Errorf("programs are left: %+v", r.Programs)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Packets out of a netkit container do not overtake each other while they
// switch paths all the time. If several CPUs send by one socket, this holds
// for those of each CPU.
func TestNetkitOrder(t *testing.T) {
	t.Parallel()
	scontest.NeedNetkit(t)
	for name, send := range map[string]sending{"one CPU": scontest.SendNumbers, "every CPU": scontest.SendNumbersEverywhere} {
		t.Run(name, func(t *testing.T) {
			b := scontest.New(t, scontest.Layout{Netkit: true, Offload: true, Config: func(c *config.Config) { c.LeasePackets = 50 }})
			b.Up()
			keepOrder(t, b, b.Outgoing("udp", 1), send)
		})
	}
}
