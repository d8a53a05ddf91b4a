package express_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Every packet of a container is counted by conntrack or by SCON, never by
// both: their sum equals what the container's device and the uplink count, in
// packets and bytes. A packet is what the device counts as one: many segments,
// with offloads.
func TestAccounting(t *testing.T) {
	t.Parallel()
	const containers = 2
	for name, l := range map[string]scontest.Layout{
		"segments": {Containers: containers},
		"offloads": {Containers: containers, Offload: true},
		"clsact":   {Containers: containers, Offload: true, Clsact: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := scontest.NewExpress(t, l)
			a := newAccounts(b)
			var all []*scontest.Connection
			for n := range containers {
				for _, connect := range scontest.Directions {
					for _, proto := range []string{"tcp", "udp"} {
						all = append(all, connect(b, proto, n+1).GoExpress())
					}
				}
			}
			for _, c := range all {
				c.Exchange(1 << 20)
			}
			if l.Offload { // older kernels segment datagrams only then
				a.bursts(all)
			}
			a.wantSums("while connections live")
			wantFlowSums(t, b)

			for _, c := range all {
				c.Close()
			}
			if _, err := b.Daemon.Flush(""); err != nil {
				t.Fatal(err)
			}
			a.wantSums("when they have ended")
			if s := b.Status(); s.Totals.Entries != 0 {
				t.Errorf("%d Conentries are left", s.Totals.Entries)
			}
		})
	}
}

// tally is a count of packets and bytes.
type tally = conntrack.Counters

func plus(a, b tally) tally {
	return tally{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}

func minus(a, b tally) tally {
	return tally{Packets: a.Packets - b.Packets, Bytes: a.Bytes - b.Bytes}
}

// pair is what one container, or all of them, have sent and received.
type pair [2]tally

func (p pair) plus(o pair) pair { return pair{plus(p[0], o[0]), plus(p[1], o[1])} }

func (p pair) minus(o pair) pair { return pair{minus(p[0], o[0]), minus(p[1], o[1])} }

// ip returns the counts of a device's frames without their Ethernet headers.
func (p pair) ip() pair {
	for i := range p {
		p[i].Bytes -= 14 * p[i].Packets
	}
	return p
}

// accounts compares the counters of conntrack, SCON and the devices.
type accounts struct {
	b             *scontest.Bed
	before        []pair // devices of the containers
	beforeOutside pair   // the uplink
}

// newAccounts starts to count. From now on only TCP and UDP cross the wires:
// neighbours are known, and the bridge sends no multicast of its own.
func newAccounts(b *scontest.Bed) *accounts {
	b.Sh(lab.Device, `
		sysctl -q -w net.netfilter.nf_conntrack_acct=1
		nft add table ip mute
		nft add chain ip mute output { type filter hook output priority 0 ; }
		nft add rule ip mute output ip protocol igmp drop`)
	a := &accounts{b: b}
	nodes := []string{lab.Device, lab.Edge}
	for n := 1; n <= b.Opts.Containers; n++ {
		c := b.Outgoing("udp", n)
		c.MustPing(1)
		c.Close()
		nodes = append(nodes, lab.Container(n))
	}
	b.Sh(lab.Device, "conntrack -F")
	for _, node := range nodes {
		keepNeighbours(b, node)
	}
	for n := 1; n <= b.Opts.Containers; n++ {
		a.before = append(a.before, deviceCounts(b, lab.Container(n), "eth0"))
	}
	a.beforeOutside = deviceCounts(b, lab.Device, lab.Uplink)
	return a
}

// keepNeighbours makes a node's neighbours permanent.
func keepNeighbours(b *scontest.Bed, node string) {
	var neighbours []struct{ Dst, Dev, Lladdr string }
	if err := json.Unmarshal([]byte(b.Sh(node, "ip -j neigh show")), &neighbours); err != nil {
		b.T.Fatal(err)
	}
	for _, n := range neighbours {
		b.Sh(node, fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", n.Dst, n.Lladdr, n.Dev))
	}
}

// deviceCounts returns the counters of a device.
func deviceCounts(b *scontest.Bed, node, dev string) pair {
	var links []struct {
		Stats64 struct{ Rx, Tx tally }
	}
	if err := json.Unmarshal([]byte(b.Sh(node, "ip -j -s link show "+dev)), &links); err != nil {
		b.T.Fatal(err)
	}
	return pair{links[0].Stats64.Tx, links[0].Stats64.Rx}
}

// bursts sends many datagrams in few packets.
func (a *accounts) bursts(all []*scontest.Connection) {
	for _, c := range all {
		if c.Proto == "udp" {
			n := scontest.SendNumbers(a.b.T, c.Client, c.Server, 16, time.Millisecond)
			n.Proceed(a.b.T, 512)
			n.WantAll(a.b.T, "bursts")
		}
	}
}

// wantSums waits until all have counted the last packets alike.
func (a *accounts) wantSums(when string) {
	a.b.T.Helper()
	scontest.Eventually(a.b.T, "the counters add up "+when, func() error {
		var errs []error
		var all pair
		for i, before := range a.before {
			n := i + 1
			regular, express := a.regular(n), a.express(n)
			device := deviceCounts(a.b, lab.Container(n), "eth0").minus(before).ip()
			if both := regular.plus(express); both != device {
				errs = append(errs, fmt.Errorf("container %d: conntrack %v and express %v are %v, its device has %v", n, regular, express, both, device))
			}
			all = all.plus(device)
		}
		if outside := deviceCounts(a.b, lab.Device, lab.Uplink).minus(a.beforeOutside).ip(); outside != all {
			errs = append(errs, fmt.Errorf("the uplink has %v, the containers %v", outside, all))
		}
		return errors.Join(errs...)
	})
}

// regular returns conntrack's counters of container n.
func (a *accounts) regular(n int) (sum pair) {
	addr := lab.ContainerAddr(n)
	for _, c := range trackedConns(a.b) {
		switch addr {
		case c.Orig.Src.Addr():
			sum = sum.plus(pair{c.Counters[0], c.Counters[1]})
		case published(c.Orig.Dst, n):
			sum = sum.plus(pair{c.Counters[1], c.Counters[0]})
		}
	}
	return sum
}

// published returns container n's address if a port of device leads to it.
func published(addr netip.AddrPort, n int) (to netip.Addr) {
	for _, p := range lab.Publications(n) {
		if p.Device == addr.Port() {
			to = lab.ContainerAddr(n)
		}
	}
	return to
}

// express returns SCON's counters of container n.
func (a *accounts) express(n int) pair {
	c, _ := a.b.Container(n)
	return pair{tally(c.ExpressSent), tally(c.ExpressReceived)}
}

// trackedConns lists the connections that conntrack counts in device.
func trackedConns(b *scontest.Bed) (all []conntrack.Counted) {
	err := b.Do(lab.Device, func() error {
		ct, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer ct.Close()
		var tuples []conntrack.Tuple
		if err := ct.Dump(func(c conntrack.Conn) { tuples = append(tuples, c.Orig) }); err != nil {
			return err
		}
		return ct.Counters(tuples, func(c conntrack.Counted) { all = append(all, c) })
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return all
}

// wantFlowSums fails unless each flow has conntrack's counters beside SCON's.
func wantFlowSums(t *testing.T, b *scontest.Bed) {
	t.Helper()
	regular := make(map[api.Tuple][2]tally)
	for _, c := range trackedConns(b) {
		regular[api.Tuple{
			Src: c.Orig.Src.Addr().String(), Sport: c.Orig.Src.Port(),
			Dst: c.Orig.Dst.Addr().String(), Dport: c.Orig.Dst.Port(),
		}] = c.Counters
	}
	for _, f := range b.Flows() {
		want := regular[f.Orig]
		if f.RegularPackets == nil || f.RegularBytes == nil {
			t.Errorf("without conntrack's counters: %+v", f)
			continue
		}
		for dir := range want {
			got := tally{Packets: f.RegularPackets[dir], Bytes: f.RegularBytes[dir]}
			if got != want[dir] || got.Packets == 0 {
				t.Errorf("direction %d: %v regular, conntrack has %v: %+v", dir, got, want[dir], f)
			}
		}
	}
}

// A container's totals never decrease, whatever happens to its connections.
func TestTotalsGrow(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	var was api.Container
	for i := range 200 {
		if i%10 == 0 {
			if _, err := b.Daemon.Flush(""); err != nil {
				t.Fatal(err)
			}
		}
		c, ok := b.Container(1)
		if !ok {
			t.Fatal("the container is gone")
		}
		if c.ExpressSent.Packets < was.ExpressSent.Packets || c.ExpressSent.Bytes < was.ExpressSent.Bytes ||
			c.ExpressReceived.Packets < was.ExpressReceived.Packets || c.ExpressReceived.Bytes < was.ExpressReceived.Bytes {
			t.Fatalf("fell from %+v to %+v", was, c)
		}
		was = c
		time.Sleep(10 * time.Millisecond)
	}
	f.WaitExpress()
	f.WantUnbroken()
}

// Without nf_conntrack_acct there are no counters to add.
func TestUncounted(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	f := b.Outgoing("udp", 1).GoExpress().MustFlow()
	if f.RegularPackets != nil || f.RegularBytes != nil {
		t.Errorf("conntrack has counted: %+v", f)
	}
}
