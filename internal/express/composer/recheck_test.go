package composer

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

// However many Conentries are in doubt, few are asked for between two beats,
// those in doubt once and first, and none is left out.
func TestRecheckNext(t *testing.T) {
	t.Parallel()
	const doubted, waiting = 3*polledAtOnce + 7, 5
	table, _ := newTable(t, doubted+waiting+1)
	var refs []contable.Ref
	for i := range doubted + waiting + 1 {
		conn := masqueraded(uint16(1000 + i))
		e, err := table.Compose(contable.End{Port: 7}, conn.Orig, conn, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, e.Ref())
	}
	gone := refs[doubted+waiting]
	table.Retire(table.Live(gone))
	u := recheck{doubted: append(slices.Clone(refs[:doubted]), gone), waiting: append(slices.Clone(refs[doubted:doubted+waiting]), gone)}
	asked := make(map[contable.Ref]int)
	for range 4 {
		once, others := u.next(table.Live)
		if n := len(once) + len(others); n > polledAtOnce {
			t.Errorf("%d at once", n)
		}
		if len(others) > 0 && len(u.doubted) > 0 {
			t.Errorf("%d in doubt have to wait", len(u.doubted))
		}
		for _, e := range append(once, others...) {
			asked[e.Ref()]++
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
	table, _ := newTable(t, 1)
	conn := masqueraded(4000)
	e, err := table.Compose(contable.End{Port: 7}, conn.Orig, conn, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &Composer{table: table}
	if !c.confirm(e, conntrack.Answer{Conn: masqueraded(4000)}) {
		t.Error("the same one is another one")
	}
	conn.Reply.Dst = netip.AddrPortFrom(conn.Reply.Dst.Addr(), 4001)
	if c.confirm(e, conntrack.Answer{Conn: conn}) {
		t.Error("another one is the same")
	}
}

// marksJudge is rules that judge single packets of connections with a mark.
type marksJudge struct{ onePort }

func (m *marksJudge) Touches(c rules.Conn) (r rules.Rule, touched bool) { return r, c.Mark == 1 }

// The rules are asked again about a connection whose mark conntrack has been told to change.
func TestConfirmMark(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t, 1)
	judge := &marksJudge{onePort{port: discover.Port{Index: 7}}}
	c := New(Options{Table: table, Ports: judge, Rules: judge, Lease: time.Second, LeaseMax: time.Minute, Keep: func(int, datapath.Kept) {}})
	c.SetLimits(Limits{TCP: time.Hour, UDP: time.Hour, Unassured: time.Hour})
	conn := masqueraded(4000)
	e, err := table.Compose(contable.End{Port: 7}, conn.Orig, conn, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, conn.Mark = range []uint32{2, 1} {
		if stays := c.confirm(e, conntrack.Answer{Conn: conn}); stays != (conn.Mark == 2) {
			t.Errorf("with mark %d it stays: %v", conn.Mark, stays)
		}
	}
}

// masqueraded is a connection of a container to the outside by one of the host's ports.
func masqueraded(port uint16) conntrack.Conn {
	const confirmed = 1 << 3
	client, server := netip.MustParseAddrPort("172.17.0.2:4000"), netip.MustParseAddrPort("10.77.0.2:7000")
	client = netip.AddrPortFrom(client.Addr(), port)
	as := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.1"), port)
	return conntrack.Conn{
		Orig: conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: client, Dst: server}, Reply: conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: server, Dst: as},
		ID: 7, Status: confirmed, Timeout: time.Minute,
	}
}
