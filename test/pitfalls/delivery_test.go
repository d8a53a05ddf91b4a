package pitfalls

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A container reaches a published port at the machine's own address, another
// container's port as well as its own.
func TestHairpin(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	const outside, inside = 9001, 80
	b.Sh(lab.Device, fmt.Sprintf(`
		ip link set veth1 type bridge_slave hairpin on
		iptables-nft -t nat -I PREROUTING -p tcp -d 10.77.0.1 --dport %[1]d -j DNAT --to-destination 172.17.0.2:%[2]d
		iptables-nft -t nat -I PREROUTING -p udp -d 10.77.0.1 --dport %[1]d -j DNAT --to-destination 172.17.0.2:%[2]d
		iptables-nft -t nat -I POSTROUTING -s 172.17.0.0/16 -d 172.17.0.0/16 -j MASQUERADE`, outside, inside))
	for n, name := range map[int]string{1: "its own", 2: "another's"} {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				b := b.In(t)
				c := b.ConnectTo(proto, lab.Container(n), lab.Container(1), netip.AddrPortFrom(lab.DeviceAddr, outside), inside, 0)
				c.MustPing(50)
				c.Exchange(2 << 20)
				c.MustPing(50)
				if n != 1 {
					c.GoExpress()
				} else if f, err := c.Flow(); err == nil && f.ExpressPackets != [2]uint64{} {
					t.Errorf("it went express: %+v", f)
				}
			})
		}
	}
	b.Outgoing("tcp", 1).GoExpress()
	b.WantNoInvalid()
}

// Containers on one bridge communicate with and without bridge-nf-call-iptables.
// Without it conntrack does not see their packets.
func TestSameBridge(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables="+call, func(t *testing.T) {
			b := scontest.New(t, scontest.Layout{Containers: 2})
			setBridgeFilter(b, call)
			b.Up()
			for _, proto := range []string{"tcp", "udp"} {
				c := b.Connect(proto, lab.Container(1), lab.Container(2), netip.AddrPortFrom(lab.ContainerAddr(2), 0))
				c.MustPing(50)
				c.Exchange(2 << 20)
				c.GoExpress()
			}
			known := b.Sh(lab.Device, "conntrack -L -s 172.17.0.2 -d 172.17.0.3")
			if tracked := strings.Contains(known, "src=172.17.0.2"); tracked != (call == "1") {
				t.Errorf("conntrack knows: %s", known)
			}
			b.Outgoing("tcp", 1).GoExpress()
			b.WantNoInvalid()
		})
	}
}

// Multicast and broadcast packets reach every member once, and none is express.
func TestMulticastAndBroadcast(t *testing.T) {
	t.Parallel()
	const count = 100
	b := scontest.NewExpress(t, scontest.Layout{Containers: 3})
	for name, to := range map[string]netip.AddrPort{
		"mDNS":                    netip.MustParseAddrPort("224.0.0.251:5353"),
		"the network's broadcast": netip.MustParseAddrPort("172.17.255.255:5000"),
		"limited broadcast":       netip.MustParseAddrPort("255.255.255.255:5001"),
	} {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			var members []*scontest.Wire
			for n := 2; n <= 3; n++ {
				members = append(members, b.OpenWire(lab.Container(n)))
			}
			var sender net.Conn
			err := b.Do(lab.Container(1), func() (err error) {
				d := net.Dialer{Control: broadcasting}
				sender, err = d.Dial("udp4", to.String())
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer sender.Close()
			for range count {
				if _, err := sender.Write([]byte("to all")); err != nil {
					t.Fatal(err)
				}
			}
			for i, w := range members {
				got := len(w.Arrived(func(f []byte) bool {
					return isUDP(f) && netip.AddrFrom4([4]byte(f[scontest.IPAt+16:])) == to.Addr()
				}))
				if got != count {
					t.Errorf("container %d received %d of %d", i+2, got, count)
				}
			}
			for _, f := range b.Flows() {
				if f.Orig.Dst == to.Addr().String() && f.ExpressPackets != [2]uint64{} {
					t.Errorf("it went express: %+v", f)
				}
			}
		})
	}
}

// broadcasting allows a socket to send to broadcast addresses.
func broadcasting(_, _ string, raw syscall.RawConn) (err error) {
	control := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	})
	if control != nil {
		return control
	}
	return err
}

// A new connection with the addresses and ports of an earlier one follows the current
// rules, which may translate it to another container.
func TestReusedTupleFollowsNewMapping(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	const outside, inside, local = 9001, 80, 40000
	for _, proto := range []string{"tcp", "udp"} {
		t.Run(proto, func(t *testing.T) {
			b := b.In(t)
			for round := range 4 {
				n := 1 + round%2
				rule := fmt.Sprintf("PREROUTING -p %s -d 10.77.0.1 --dport %d -j DNAT --to-destination %v:%d", proto, outside, lab.ContainerAddr(n), inside)
				b.Sh(lab.Device, fmt.Sprintf(`
					iptables-nft -t nat -I %s
					iptables-nft -I DOCKER-USER -p %s -o docker0 --dport %d -j ACCEPT`, rule, proto, inside))
				c := b.ConnectTo(proto, lab.Edge, lab.Container(n), netip.AddrPortFrom(lab.DeviceAddr, outside), inside, local).GoExpress()
				c.Exchange(1 << 20)
				if f := c.MustFlow(); f.Reply.Src != lab.ContainerAddr(n).String() {
					t.Errorf("round %d goes to %s", round, f.Reply.Src)
				}
				c.Close()
				// As Docker does when a port is no longer published.
				b.Sh(lab.Device, "iptables-nft -t nat -D "+rule+fmt.Sprintf(`
					conntrack -D -p %s --orig-port-dst %d`, proto, outside))
			}
		})
	}
	b.WantNoInvalid()
}

// Containers that share a network namespace, as in a pod, share a bridge port. Their
// connections are distinguished as those of a single container are.
func TestContainersInOneNamespace(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	one, two := b.Outgoing("tcp", 1).GoExpress(), b.Incoming("tcp", 1).GoExpress()
	if c, _ := b.Container(1); c.Entries != 2 {
		t.Errorf("%d Conentries at the port", c.Entries)
	}
	one.Exchange(1 << 20)
	two.Exchange(1 << 20)
	if err := scontest.Reset(one.Client); err != nil {
		t.Fatal(err)
	}
	one.WaitGone()
	two.GoExpress()
	two.Exchange(1 << 20)
	b.WantNoInvalid()
}
