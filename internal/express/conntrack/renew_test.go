package conntrack

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/nstest"
)

// openRenewer opens a renewer in a namespace.
func openRenewer(t *testing.T, ns string) (r *Renewer) {
	t.Helper()
	var err error
	nstest.Do(t, ns, func() { r, err = OpenRenewer() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// The entry that Renew creates has the translations, the mark and the scales of the one
// before, is liberal, and has no windows: conntrack takes them from the packets that
// follow and judges by them when it is told to.
func TestRenew(t *testing.T) {
	for name, rules := range map[string]string{
		"destination translated": "",
		"both translated":        "iptables -t nat -A POSTROUTING -p tcp --dport 8080 -j SNAT --to-source 10.9.0.1:7777",
	} {
		t.Run(name, func(t *testing.T) {
			ns, _ := tracked(t)
			nstest.Run(t, ns, "iptables -t mangle -A OUTPUT -p tcp --dport 80 -j CONNMARK --set-mark 7\n"+rules)
			conn, orig, _ := connect(t, ns)
			r := openRenewer(t, ns)
			before, err := r.Entry(orig)
			if err != nil || before.Obstacle != "" || before.Mark != 7 {
				t.Fatalf("Entry = %+v, %v", before, err)
			}
			sendStraySegments(t, ns, before.Reply)
			stray := invalidIn(t, ns)
			if stray == "0" {
				t.Fatal("conntrack does not judge the connection")
			}
			if err := r.Renew(before); err != nil {
				t.Fatal(err)
			}
			after, err := r.Entry(orig)
			if err != nil || !after.Liberal() {
				t.Fatalf("Entry = %+v, %v; want one that is liberal", after, err)
			}
			if both, any := after.SeenInWindow(); both || any {
				t.Errorf("flags %#x; want no windows", after.TCPFlags)
			}
			if after.Timeout > before.Timeout || after.Timeout < before.Timeout-10*time.Second {
				t.Errorf("timeout %v, was %v", after.Timeout, before.Timeout)
			}
			const kept = statusBothWays | statusSrcNAT | statusDstNAT
			if after.Reply != before.Reply || after.Mark != 7 || after.Scales != before.Scales || after.Status&kept != before.Status&kept {
				t.Errorf("entry became %+v, was %+v", after, before)
			}
			exchange(t, conn, r, orig)
			if err := r.JudgeTCP(after.Conn); err != nil {
				t.Fatal(err)
			}
			sendStraySegments(t, ns, before.Reply)
			if now := invalidIn(t, ns); now == stray {
				t.Errorf("%s segments INVALID before and after: conntrack does not judge", now)
			}
			stray = invalidIn(t, ns)
			exchange(t, conn, r, orig)
			if now := invalidIn(t, ns); now != stray {
				t.Errorf("segments of the connection are INVALID: %s, before %s", now, stray)
			}
		})
	}
}

// exchange sends bytes, and waits until conntrack has seen them and their acknowledgement
// within the windows.
func exchange(t *testing.T, conn net.Conn, r *Renewer, orig Tuple) {
	t.Helper()
	if _, err := conn.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	var e Entry
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		e = mustEntry(t, r, orig)
		if both, _ := e.SeenInWindow(); both && !e.Unacknowledged() {
			return
		}
	}
	t.Fatalf("packets of both directions have set no windows: flags %#x", e.TCPFlags)
}

func mustEntry(t *testing.T, r *Renewer, orig Tuple) Entry {
	t.Helper()
	e, err := r.Entry(orig)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Renew does not bring back a connection that has ended meanwhile, and leaves another
// one with the same tuple alone.
func TestRenewEnded(t *testing.T) {
	ns, _ := tracked(t)
	_, orig, _ := connect(t, ns)
	r := openRenewer(t, ns)
	e := mustEntry(t, r, orig)
	other := e
	other.ID++
	if err := r.Renew(other); !errors.Is(err, ErrNotFound) {
		t.Errorf("Renew with another ID = %v, want ErrNotFound", err)
	}
	if now := mustEntry(t, r, orig); now.ID != e.ID {
		t.Errorf("Renew with another ID replaced %+v by %+v", e, now)
	}
	if err := r.Delete(e.Conn); err != nil {
		t.Fatal(err)
	}
	if err := r.Renew(e); !errors.Is(err, ErrNotFound) {
		t.Errorf("Renew = %v, want ErrNotFound", err)
	}
	if e, err := r.Entry(orig); !errors.Is(err, ErrNotFound) {
		t.Errorf("Renew has created %+v, %v", e, err)
	}
}

// If another connection has taken the tuple, Renew says that the entry is lost.
func TestRenewLost(t *testing.T) {
	ns, _ := tracked(t)
	_, orig, reply := connect(t, ns)
	_, other, _ := connectTo(t, ns, "10.9.0.1:9090", "10.9.0.1:9090")
	r := openRenewer(t, ns)
	e := mustEntry(t, r, other)
	e.Reply = reply // that of the first connection
	if err := r.Renew(e); !errors.Is(err, ErrLost) {
		t.Errorf("Renew = %v, want ErrLost", err)
	}
	if _, err := r.Entry(orig); err != nil {
		t.Errorf("the other connection: %v", err)
	}
}

// The kernel creates entries with both translations, of both families, and Try leaves
// none.
func TestTry(t *testing.T) {
	ns, _ := tracked(t)
	r := openRenewer(t, ns)
	for _, ipv6 := range []bool{false, true} {
		for range 2 {
			if err := r.Try(ipv6); err != nil {
				t.Error(err)
			}
		}
	}
	if err := r.Dump(func(c Conn) { t.Errorf("Try has left %+v", c) }); err != nil {
		t.Error(err)
	}
}

// What Renew could not create again is found.
func TestObstacle(t *testing.T) {
	for name, c := range map[string]struct {
		rules string
		after func(t *testing.T, ns string, conn net.Conn)
		want  string
	}{
		"none":   {},
		"helper": {rules: "iptables -t raw -A OUTPUT -p tcp --dport 80 -j CT --helper ftp", want: "helper ftp"},
		"zone": {rules: `
			iptables -t raw -A OUTPUT -j CT --zone 5
			iptables -t raw -A PREROUTING -j CT --zone 5`, want: "zone"},
		"zone of one direction": {rules: `
			iptables -t raw -A OUTPUT -j CT --zone-orig 5`, want: "zone"},
		"label": {rules: `
			nft add table ip x
			nft add chain ip x c { type filter hook output priority 0 ; }
			nft add rule ip x c ct label set 3`, want: "labels"},
		"picked up": {after: func(t *testing.T, ns string, conn net.Conn) {
			nstest.Run(t, ns, "conntrack -D -p tcp")
			if _, err := conn.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		}, want: "scaled"},
		"ending": {after: func(t *testing.T, ns string, conn net.Conn) {
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}, want: "ending"},
	} {
		t.Run(name, func(t *testing.T) {
			ns, _ := tracked(t)
			if c.rules != "" {
				nstest.Run(t, ns, c.rules)
			}
			conn, _, _ := connect(t, ns)
			r := openRenewer(t, ns)
			if c.after != nil {
				c.after(t, ns, conn)
			}
			n := 0
			if err := r.DumpEntries(func(e Entry) {
				n++
				if (e.Obstacle == "") != (c.want == "") || !strings.Contains(e.Obstacle, c.want) {
					t.Errorf("obstacle %q, want %q: %+v", e.Obstacle, c.want, e)
				}
			}); err != nil || n != 1 {
				t.Errorf("DumpEntries gave %d, %v", n, err)
			}
		})
	}
}

// A connection of which others are expected is found.
func TestExpecting(t *testing.T) {
	ns, _ := tracked(t)
	nstest.Run(t, ns, `
		nft add table ip x
		nft add ct expectation ip x e { protocol tcp ; dport 9876 ; timeout 2m ; size 12 ; l3proto ip ; }
		nft add chain ip x c { type filter hook output priority 0 ; }
		nft add rule ip x c tcp dport 8080 ct expectation set e`)
	_, orig, _ := connect(t, ns)
	r := openRenewer(t, ns)
	if masters, err := r.Expecting(); err != nil || len(masters) != 1 || !masters[orig] {
		t.Errorf("Expecting = %v, %v; want %v", masters, err, orig)
	}
}
