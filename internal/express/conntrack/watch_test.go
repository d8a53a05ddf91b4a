package conntrack

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestMain(m *testing.M) {
	check.Main(m)
}

// patience is how long a test waits for what has to come.
const patience = 10 * time.Second

// watch starts a watcher in a namespace; it has ended when the test ends.
func watch(t *testing.T, ns string, buffer int) <-chan Destroyed {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var events <-chan Destroyed
	var err error
	nstest.Do(t, ns, func() { events, err = watchDestroy(ctx, 0, buffer) })
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		for range events {
		}
	})
	return events
}

func next(t *testing.T, events <-chan Destroyed) Destroyed {
	t.Helper()
	select {
	case d, ok := <-events:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return d
	case <-time.After(patience):
		t.Fatal("no event")
	}
	panic("not reached")
}

func TestWatchDestroy(t *testing.T) {
	ns, client := tracked(t)
	events := watch(t, ns, watchBuffer)
	_, orig, reply := connect(t, ns)
	c, err := client.Get(orig)
	if err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, ns, "ping -c 1 10.9.0.1") // its end is not reported
	nstest.Run(t, ns, "conntrack -D -p icmp")
	nstest.Run(t, ns, "conntrack -D -p tcp --orig-port-dst 80")
	if got, want := next(t, events), (Destroyed{Orig: orig, Reply: reply, ID: c.ID}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWatchGoesOnAfterOverrun(t *testing.T) {
	ns, _ := tracked(t)
	events := watch(t, ns, 4<<10)
	// Each round ends more connections than the buffer and the channel hold.
	fill := func() {
		nstest.Do(t, ns, func() {
			conn, err := net.ListenPacket("udp4", "10.9.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for port := range 2 * watchQueue {
				to := &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1), Port: 10000 + port}
				if _, err := conn.WriteTo([]byte{1}, to); err != nil {
					t.Fatal(err)
				}
			}
		})
		nstest.Run(t, ns, "conntrack -F")
	}
	fill()
	for !next(t, events).Overrun {
	}
	_, orig, _ := connect(t, ns)
	nstest.Run(t, ns, "conntrack -D -p tcp --orig-port-dst 80")
	for next(t, events).Orig != orig {
	}
}

// destroyed is a DESTROY message of a UDP connection, from nfgenmsg on, as
// Linux 6.18 wrote it.
const destroyed = "02000035" +
	"34000180" + "14000180" + "080001000a090001" + "080002000a090001" +
	"1c000280" + "0500010011000000" + "06000200df8c0000" + "0600030027100000" +
	"34000280" + "14000180" + "080001000a090001" + "080002000a090001" +
	"1c000280" + "0500010011000000" + "0600020027100000" + "06000300df8c0000" +
	"08000c00" + "a1b2c3d4" + "08000300" + "00000208"

func TestParseDestroyed(t *testing.T) {
	b, err := hex.DecodeString(destroyed)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := parseDestroyed(b)
	got := fmt.Sprintf("%v, %v, %x, %v", d.Orig, d.Reply, d.ID, ok)
	want := "udp 10.9.0.1:57228 > 10.9.0.1:10000, udp 10.9.0.1:10000 > 10.9.0.1:57228, a1b2c3d4, true"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { parseDestroyed(b) }); n != 0 {
		t.Errorf("%v allocations for a message", n)
	}
	for cut := range len(b) - 16 { // what comes after the tuples may be missing
		if d, ok := parseDestroyed(b[:cut]); ok {
			t.Errorf("the first %d bytes gave %+v", cut, d)
		}
	}
}

func BenchmarkParseDestroyed(b *testing.B) {
	msg, err := hex.DecodeString(destroyed)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		parseDestroyed(msg)
	}
}

func FuzzParseConn(f *testing.F) {
	b, err := hex.DecodeString(destroyed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, ok := parseConn(b)
		d, same := parseDestroyed(b)
		if ok != same || c.Orig != d.Orig || c.Reply != d.Reply || c.ID != d.ID {
			t.Errorf("a connection %+v, %v that left the table as %+v, %v", c, ok, d, same)
		}
		if ok && (c.Orig.Proto != unix.IPPROTO_TCP && c.Orig.Proto != unix.IPPROTO_UDP) {
			t.Errorf("protocol %d", c.Orig.Proto)
		}
	})
}
