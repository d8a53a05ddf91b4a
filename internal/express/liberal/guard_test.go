package liberal

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// While an entry is missing, no packet of its connection gets past the guard: none leaves
// an entry, is judged by rules, or is answered with a RST. Other connections are not
// affected. With the entry in place the guard lets packets pass, and it goes with its
// socket.
func TestGuard(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]scontest.Layout{"IPv4": {Containers: 2}, "IPv6": {Containers: 2, IPv6: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scontest.New(t, l)
			incoming, outgoing, other := b.Incoming("tcp", 1), b.Outgoing("tcp", 1), b.Incoming("tcp", 2)
			if l.IPv6 {
				incoming, outgoing, other = b.Incoming6("tcp", 1), b.Outgoing6("tcp", 1), b.Incoming6("tcp", 2)
			}
			b.Sh(lab.Device, `
				nft add table inet seen
				nft add chain inet seen before { type filter hook prerouting priority -300 ; }
				nft add chain inet seen after { type filter hook prerouting priority -198 ; }
				nft add rule inet seen before meta l4proto tcp counter
				nft add rule inet seen after meta l4proto tcp tcp flags & syn == 0 ct state new,invalid counter`)
			var ct *conntrack.Renewer
			var g *guard
			var guarded []*conn
			err := b.Do(lab.Device, func() (err error) {
				if ct, err = conntrack.OpenRenewer(); err != nil {
					return err
				}
				t.Cleanup(func() { ct.Close() })
				if err := ct.DumpEntries(func(e conntrack.Entry) {
					if p := e.Orig.Src.Port(); p == incoming.Port() || p == outgoing.Port() {
						guarded = append(guarded, &conn{Conn: Conn{Tuple: e.Orig}, entry: e})
					}
				}); err != nil {
					return err
				}
				g, err = openGuard(guarded)
				return err
			})
			if err != nil || len(guarded) != 2 {
				t.Fatalf("guarded %d connections, %v", len(guarded), err)
			}
			for _, c := range []*scontest.Connection{incoming, outgoing, other} {
				c.MustPing(3)
			}
			for _, c := range guarded {
				if err := ct.Delete(c.entry.Conn); err != nil {
					t.Fatal(err)
				}
			}
			before := packets(b, "before")
			for _, c := range []*scontest.Connection{incoming, outgoing} {
				for _, end := range []net.Conn{c.Client, c.Server} {
					if _, err := end.Write([]byte("lost at first")); err != nil {
						t.Fatal(err)
					}
				}
			}
			scontest.Eventually(t, "TCP sends again", func() error {
				if n := packets(b, "before") - before; n < 12 { // three times from each end
					return fmt.Errorf("%d packets", n)
				}
				return nil
			})
			other.MustPing(3)
			if n := packets(b, "after"); n != 0 {
				t.Errorf("%d packets without an entry got past the guard", n)
			}
			for _, c := range guarded {
				if e, err := ct.Entry(c.Tuple); !errors.Is(err, conntrack.ErrNotFound) {
					t.Errorf("packets have created %+v, %v", e, err)
				}
			}
			for _, c := range []*scontest.Connection{incoming, outgoing} {
				for _, end := range []net.Conn{c.Client, c.Server} {
					_ = end.SetReadDeadline(time.Now().Add(time.Millisecond))
					var timeout net.Error
					if _, err := end.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
						t.Errorf("an end has read %v", err)
					}
				}
			}
			g.Close()
			scontest.Eventually(t, "the kernel removes the tables", func() error {
				if out := b.Sh(lab.Device, "nft list tables"); strings.Contains(out, guardTable) {
					return errors.New(out)
				}
				return nil
			})
		})
	}
}

var counted = regexp.MustCompile(`packets (\d+)`)

// packets returns what a chain of TestGuard has counted.
func packets(b *scontest.Bed, chain string) int {
	b.T.Helper()
	m := counted.FindStringSubmatch(b.Sh(lab.Device, "nft list chain inet seen "+chain))
	n, err := strconv.Atoi(m[1])
	if err != nil {
		b.T.Fatal(err)
	}
	return n
}
