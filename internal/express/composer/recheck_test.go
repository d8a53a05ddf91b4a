package composer

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// However many Conentries are in doubt, few are asked for between two beats,
// those in doubt once and first, and none is left out.
func TestRecheckNext(t *testing.T) {
	t.Parallel()
	const doubted, waiting = 3*polledAtOnce + 7, 5
	var u recheck
	for range doubted {
		u.doubted = append(u.doubted, new(contable.Conentry))
	}
	for range waiting {
		u.waiting = append(u.waiting, new(contable.Conentry))
	}
	gone := new(contable.Conentry)
	u.doubted, u.waiting = append(u.doubted, gone), append(u.waiting, gone)
	asked := make(map[*contable.Conentry]int)
	for range 4 {
		once, others := u.next(func(e *contable.Conentry) bool { return e != gone })
		if n := len(once) + len(others); n > polledAtOnce {
			t.Errorf("%d at once", n)
		}
		if len(others) > 0 && len(u.doubted) > 0 {
			t.Errorf("%d in doubt have to wait", len(u.doubted))
		}
		for _, e := range append(once, others...) {
			asked[e]++
		}
	}
	for _, n := range asked {
		if n != 1 {
			t.Errorf("asked for %d times", n)
		}
	}
	if len(asked) != doubted+waiting {
		t.Errorf("%d asked for, want %d", len(asked), doubted+waiting)
	}
}

// A connection that conntrack has lost and that began again is another one if it is translated
// in another way, though it may have got the same ID.
func TestConfirmTranslation(t *testing.T) {
	t.Parallel()
	client, server := netip.MustParseAddrPort("172.17.0.2:4000"), netip.MustParseAddrPort("10.77.0.2:7000")
	masqueraded := func(port uint16) conntrack.Conn {
		const confirmed = 1 << 3
		as := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.1"), port)
		return conntrack.Conn{
			Orig: conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: client, Dst: server}, Reply: conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: server, Dst: as},
			ID: 7, Status: confirmed, Timeout: time.Minute,
		}
	}
	c, e := new(Composer), &contable.Conentry{Conn: masqueraded(4000)}
	if !c.confirm(e, conntrack.Answer{Conn: masqueraded(4000)}, time.Now()) {
		t.Error("the same one is another one")
	}
	if c.confirm(e, conntrack.Answer{Conn: masqueraded(4001)}, time.Now()) {
		t.Error("another one is the same")
	}
}
