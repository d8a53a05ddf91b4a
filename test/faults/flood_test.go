package faults

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A flood of a million 5-tuples from one container evicts no Conentry of another
// container and does not keep its traffic regular, neither during the flood nor
// afterwards. The daemon's memory and processor time stay bounded.
func TestFlood(t *testing.T) {
	b := newExpress(t, scontest.Layout{Containers: 3, Offload: true, Config: func(c *config.Config) { *c = config.Default() }})
	b.Sh(lab.Device, "sysctl -q net.netfilter.nf_conntrack_udp_timeout=3") // otherwise conntrack's table fills up
	c := b.Outgoing("udp", 2).GoExpress()
	stream := scontest.StartStream(b.Incoming("tcp", 2).GoExpress())
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	scontest.SendNumbers(t, c.Server, c.Client, 1, time.Millisecond)
	scontest.Eventually(t, "conntrack keeps the other container's connection if its table is full", func() error {
		if out := b.Sh(lab.Device, "conntrack -L -p udp --orig-src "+c.MustFlow().Orig.Src+" 2>&1"); !strings.Contains(out, "[ASSURED]") {
			return errors.New(out)
		}
		return nil
	})
	n.Proceed(t, 100)
	for _, f := range []struct{ tuples, packets int }{
		{1_000_000, 1},
		{50_000, b.Config.Admit}, // enough for a Conentry each
	} {
		before, unknown := c.MustFlow(), unknownPackets(b, 2)
		sent, cpu, start := n.Sent.Load(), b.Daemon.ProcessorTime(), time.Now()
		over := make(chan struct{})
		go func() {
			defer close(over)
			flood(b, 1, f.tuples, f.packets)
		}()
		b.Outgoing("udp", 3).GoExpress() // a new connection of a third container: the daemon answers meanwhile
		<-over
		took := time.Since(start)
		cpu, sent = b.Daemon.ProcessorTime()-cpu, n.Sent.Load()-sent
		after := c.MustFlow()
		unknown = unknownPackets(b, 2) - unknown
		express := after.ExpressPackets[0] - before.ExpressPackets[0]
		t.Logf("%d x %d packets in %v: %v of the daemon, %d MB resident, %d of %d packets of the other express",
			f.tuples, f.packets, took, cpu, b.Daemon.Resident()>>20, express, sent)
		// On a busy machine the daemon may miss a heartbeat.
		if after.AgeMS < before.AgeMS || express == 0 || unknown > 10 {
			t.Errorf("the other container's Conentry was %+v, is %+v; %d of its packets had none", before, after, unknown)
		}
		if cpu > took { // a whole core is not bounded
			t.Errorf("the daemon used %v of processor time in %v", cpu, took)
		}
		if private, limit := b.Daemon.Private(), int64(20<<20); private > limit {
			t.Errorf("the daemon uses %d MB of private memory", private>>20)
		}
		own, _ := b.Container(1)
		if most := b.Config.Connections * b.Config.PerContainerShare / 100; own.Entries > most {
			t.Errorf("the flood has %d Conentries, its share is %d", own.Entries, most)
		}
	}
	for _, proto := range []string{"tcp", "udp"} {
		b.Outgoing(proto, 2).GoExpress()
		b.Incoming(proto, 2).GoExpress().Close()
	}
	stream.Stop(t)
}

// unknownPackets counts a container's packets without a Conentry.
func unknownPackets(b *scontest.Bed, n int) uint64 {
	b.T.Helper()
	c, _ := b.Container(n)
	return c.Reasons["no_entry"]
}

// portsEach is the number of ports at each destination of a flood. The destinations are
// addresses behind edge that do not answer.
const portsEach = 10_000

// floodTo returns the destination of tuple i.
func floodTo(i int) netip.AddrPort {
	n := i / portsEach
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)}), uint16(20000+i%portsEach))
}

// flood sends one packet for each of n distinct 5-tuples from a container of
// the lab, many per system call.
func flood(b *scontest.Bed, container, tuples, packets int) {
	b.T.Helper()
	w := b.OpenWire(lab.Container(container))
	mac, src := b.BridgeMAC(), netip.AddrPortFrom(lab.ContainerAddr(container), 9)
	const most = 1024
	var batch [][]byte
	for i := range tuples {
		f := scontest.Frame(mac, w.Iface.HardwareAddr, src, floodTo(i), "x")
		for range packets {
			batch = append(batch, f)
		}
		if len(batch) >= most || i == tuples-1 {
			w.SendAll(batch)
			batch = batch[:0]
		}
	}
}
