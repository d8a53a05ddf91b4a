package daemon_test

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/datapath"
)

// traffic is a stream into container 1, and numbers both ways.
type traffic struct {
	t                 *testing.T
	stream            *stream
	datagrams         *connection
	requests, replies *numbers
}

func (b *bed) startTraffic() *traffic {
	b.t.Helper()
	return b.trafficOver(b.incoming("tcp", 1), b.outgoing("udp", 1))
}

func (b *bed) trafficOver(tcp, udp *connection) *traffic {
	b.t.Helper()
	return &traffic{
		t: b.t, stream: startStream(tcp), datagrams: udp,
		requests: sendNumbers(b.t, udp.client, udp.server, 1, time.Millisecond),
		replies:  sendNumbers(b.t, udp.server, udp.client, 1, time.Millisecond),
	}
}

func (f *traffic) waitExpress() {
	f.t.Helper()
	f.stream.c.waitExpress(nil)
	f.datagrams.waitExpress(nil)
}

func (f *traffic) proceed() {
	f.t.Helper()
	f.stream.proceed(f.t, 256<<10)
	f.requests.proceed(f.t, 100)
	f.replies.proceed(f.t, 100)
}

// wantUnbroken ends the traffic: everything must have arrived.
func (f *traffic) wantUnbroken() {
	f.t.Helper()
	f.stream.stop(f.t)
	f.requests.wantAll(f.t, "requests")
	f.replies.wantAll(f.t, "replies")
}

// pins returns the paths of pinned objects whose names match.
func (b *bed) pins(pattern string) []string {
	b.t.Helper()
	paths, err := filepath.Glob(b.seen("/sys/fs/bpf/scon/*/" + pattern))
	if err != nil {
		b.t.Fatal(err)
	}
	return paths
}

// pinned opens a pinned map.
func (b *bed) pinned(name string) *ebpf.Map {
	b.t.Helper()
	paths := b.pins(name)
	if len(paths) != 1 {
		b.t.Fatalf("pins of %s: %q", name, paths)
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { m.Close() })
	return m
}

// expressPackets counts what has gone express, without a daemon.
func (b *bed) expressPackets() (sum uint64) {
	b.t.Helper()
	var slot uint32
	var half datapath.Half
	entries := b.pinned("conentries").Iterate()
	for entries.Next(&slot, &half) {
		sum += half.Packets
	}
	if err := entries.Err(); err != nil {
		b.t.Fatal(err)
	}
	return sum
}

// heartbeat is how long packets go express without a daemon at the most, and a
// little more for the machine.
const heartbeat = 1500 * time.Millisecond

// A daemon that is killed breaks no connection. Packets go express for a second,
// then regular; the next daemon takes its Conentries over.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		t.Run(map[bool]string{false: "tcx", true: "clsact"}[clsact], func(t *testing.T) {
			b := newExpress(t, layout{clsact: clsact})
			f := b.startTraffic()
			f.waitExpress()
			before := [2][2]uint64{f.stream.c.mustFlow().ExpressPackets, f.datagrams.mustFlow().ExpressPackets}

			b.daemon.kill()
			time.Sleep(heartbeat)
			dead := b.expressPackets()
			f.proceed()
			if now := b.expressPackets(); now != dead {
				t.Errorf("%d packets went express without a daemon", now-dead)
			}

			b.up()
			for i, c := range []*connection{f.stream.c, f.datagrams} {
				for dir, n := range c.mustFlow().ExpressPackets {
					if n < before[i][dir] {
						t.Errorf("%s, direction %d: %d express packets, before the restart %d", c.proto, dir, n, before[i][dir])
					}
				}
			}
			f.waitExpress()
			f.wantUnbroken()
			b.wantNoInvalid()
		})
	}
}

// Killed at any moment, also of its start.
func TestKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	f := b.startTraffic()
	f.waitExpress()
	for range 10 {
		b.daemon.kill()
		b.daemon = b.launch(b.task())
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
	}
	b.daemon.kill()
	b.up()
	f.waitExpress()
	f.proceed()
	f.wantUnbroken()
	b.wantNoInvalid()
}

// What an earlier daemon pinned is taken over only if it fits; else the next
// one begins anew, and packets never notice.
func TestPinsOfAnother(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(b *bed) error{
		"layout": func(b *bed) error {
			var s datapath.Settings
			m := b.pinned("settings")
			if err := m.Lookup(uint32(0), &s); err != nil {
				return err
			}
			s.Layout = datapath.LayoutVersion + 1
			return m.Put(uint32(0), s)
		},
		"size": func(b *bed) error {
			b.config.Connections *= 2
			return nil
		},
		"settings of the table": func(b *bed) error {
			var s datapath.Settings
			m := b.pinned("settings")
			if err := m.Lookup(uint32(0), &s); err != nil {
				return err
			}
			s.Mask = 2*s.Mask + 1
			return m.Put(uint32(0), s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newExpress(t, layout{config: func(c *config.Config) { c.Connections = 256 }})
			f := b.startTraffic()
			f.waitExpress()
			b.daemon.kill()
			time.Sleep(heartbeat)
			if err := alter(b); err != nil {
				t.Fatal(err)
			}
			b.up()
			if strings.Contains(b.daemon.words(), "took over") {
				t.Errorf("a table that does not fit was taken over:\n%s", b.daemon.words())
			}
			f.waitExpress()
			f.wantUnbroken()
			b.wantNoInvalid()
		})
	}
}
