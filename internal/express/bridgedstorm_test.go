package express_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A storm to addresses that the bridge does not know, from a container or from outside,
// reaches each other port once, as without SCON, and none of it goes express.
func TestBridgedOutStorm(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]string{"tracked": "\niptables-nft -P FORWARD ACCEPT", "alone": bridgeAlone} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBridged(t, scontest.Layout{Containers: 2}, setUp)
			c := outward(b, "udp").GoExpress()
			before := b.Status()
			nodes := []string{lab.Container(1), lab.Container(2), lab.Edge}
			wires := make(map[string]*scontest.Wire)
			for _, node := range nodes {
				wires[node] = b.OpenWire(node)
			}
			for _, daemon := range []bool{true, false} {
				if !daemon {
					b.Daemon.Down()
				}
				for _, from := range nodes[1:] {
					storm(t, wires, from, b.Config.Admit)
				}
				if !daemon {
					return
				}
				c.MustPing(20)
				after := b.Status()
				if own := c.MustFlow(); own.State != "express" || after.Totals.ExpressPackets-before.Totals.ExpressPackets > 40 {
					t.Errorf("%d packets went express; %+v", after.Totals.ExpressPackets-before.Totals.ExpressPackets, own)
				}
				if after.Generation != before.Generation {
					t.Errorf("generation %d, then %d", before.Generation, after.Generation)
				}
			}
		})
	}
}

// storm sends from one end as many packets of each of 50 connections as make a
// connection known, and checks that each reaches each other end once.
func storm(t *testing.T, wires map[string]*scontest.Wire, from string, admit int) {
	t.Helper()
	const mark = "storm"
	for i := range 50 {
		frame := scontest.Frame(net.HardwareAddr{2, 0xde, 0xad, 0, 0, byte(i)}, wires[from].Iface.HardwareAddr,
			netip.AddrPortFrom(neighbour, uint16(20000+i)), netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 17, 9, byte(i)}), 9), mark)
		sent := 4 * admit
		for range sent {
			wires[from].Send(frame)
		}
		arrived := map[string]int{}
		for node, w := range wires {
			if node == from {
				continue
			}
			is := func(f []byte) bool { return bytes.Equal(f, frame) }
			for range sent {
				w.Receive(is)
			}
			arrived[node] += len(w.Arrived(is))
		}
		for node, more := range arrived {
			if more > 0 {
				t.Errorf("%d more packets reached %s than %s sent", more, node, from)
			}
		}
	}
}

// A storm to thousands of addresses that the bridge does not know, also from thousands of
// machines, reaches each other port once and is of no concern to the daemon: it is told of
// none of these packets, makes no Conentry and withdraws none. The connections of others
// have all of their packets express meanwhile, and none of them leaves by a wrong port.
func TestBridgedOutStormOfMany(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]string{"tracked": "\niptables-nft -P FORWARD ACCEPT", "alone": bridgeAlone} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBridged(t, scontest.Layout{Containers: 2, Config: func(c *config.Config) { c.Metrics = metricsAddr }}, setUp)
			connections := []*scontest.Connection{outward(b, "udp").GoExpress(), inward(b, "tcp").GoExpress()}
			nodes := []string{lab.Container(1), lab.Container(2), lab.Edge}
			wires := make(map[string]*scontest.Wire)
			for _, node := range nodes {
				wires[node] = b.OpenWire(node)
			}
			told := func() (all [4]uint64) {
				m := scrape(t, b)
				for i, name := range []string{"scon_conentries_composed_total", "scon_candidates_refused_total", "scon_changes_total"} {
					all[i] = value(m, name, "")
				}
				all[3] = uint64(b.Status().Generation)
				return all
			}
			before, flows := told(), [2]uint64{connections[0].MustFlow().ExpressPackets[0], connections[1].MustFlow().ExpressPackets[0]}
			const packets, piece = 4000, 40
			for _, from := range nodes[1:] {
				for _, machines := range []bool{false, true} {
					for first := 0; first < packets; first += piece {
						frames := unknown(wires[from].Iface.HardwareAddr, first, piece, machines)
						wires[from].SendAll(frames)
						for node, w := range wires {
							if node != from {
								wantOnce(t, w, frames)
							}
						}
						if first%(10*piece) == 0 {
							connections[0].MustPing(1)
							connections[1].MustPing(1)
						}
					}
				}
			}
			if after := told(); after != before {
				t.Errorf("Conentries composed, candidates refused, changes, generation: %d, then %d", before, after)
			}
			for i, c := range connections {
				const pings = 2 * 2 * packets / (10 * piece)
				if f := c.MustFlow(); f.State != "express" || f.ExpressPackets[0] < flows[i]+pings/2 {
					t.Errorf("%d packets express before %d pings: %+v", flows[i], pings, f)
				}
			}
			if n := b.Status().Totals.Entries; n != len(connections) {
				t.Errorf("%d Conentries", n)
			}
		})
	}
}

// unknown returns frames from n on, each to an address of its own that no bridge knows; if
// machines is set, also from one of its own.
func unknown(from net.HardwareAddr, first, n int, machines bool) (frames [][]byte) {
	for i := first; i < first+n; i++ {
		to, dst := net.HardwareAddr{2, 0xde, 0xad, 0, 0, 0}, [4]byte{172, 17, 0x40, 0}
		binary.BigEndian.PutUint16(to[4:], uint16(i))
		binary.BigEndian.PutUint16(dst[2:], uint16(0x4000+i))
		src := from
		if machines {
			src = slices.Clone(to)
			src[3] = from[5] // other machines than those behind other ports
			src[2] = 0xaf
		}
		frames = append(frames, scontest.Frame(to, src, netip.AddrPortFrom(neighbour, uint16(20000+i)),
			netip.AddrPortFrom(netip.AddrFrom4(dst), 9), "storm"))
	}
	return frames
}

// wantOnce fails unless each of the frames arrives once.
func wantOnce(t *testing.T, w *scontest.Wire, frames [][]byte) {
	t.Helper()
	missing := make(map[string]bool)
	for _, f := range frames {
		missing[string(f)] = true
	}
	is := func(f []byte) bool { return bytes.HasSuffix(f, []byte("storm")) }
	scontest.Eventually(t, "the storm arrives", func() error {
		for _, p := range w.Arrived(is) {
			if !missing[string(p.Data)] {
				t.Fatalf("it arrived once more, or another packet: % x", p.Data)
			}
			delete(missing, string(p.Data))
		}
		if n := len(missing); n > 0 {
			return fmt.Errorf("%d packets did not", n)
		}
		return nil
	})
}
