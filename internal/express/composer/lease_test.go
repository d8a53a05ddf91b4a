package composer

import (
	"fmt"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// What bounds a lease may name a device, and devices come and go: texts that no lease has
// any more take no memory.
func TestBoundsAreForgotten(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t, 1)
	port := &onePort{port: discover.Port{Index: 7}}
	c := New(Options{
		Table: table, Ports: port, Rules: port, Lease: time.Second, LeaseMax: time.Minute, Keep: func(int, datapath.Kept) {},
	})
	const replied, assured = 1 << 1, 1 << 2
	conn := masqueraded(1000)
	conn.Status |= replied | assured
	e, err := table.Compose(contable.End{Port: 7}, conn.Orig, conn, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.placed(e)
	for i := range 1000 {
		by := fmt.Sprintf("redirects are accepted at veth%d", i)
		c.SetLimits(Limits{Learnt4: by, TCP: time.Hour, UDP: time.Hour, Unassured: time.Hour})
		if got := c.LeaseOf(e); got != boundUntilRead {
			t.Fatalf("before it is decided again, the lease is bounded by %q", got)
		}
		c.decideLease(e, conn)
		if got := c.LeaseOf(e); got != by || e.Lease() != time.Second {
			t.Fatalf("a lease of %v, bounded by %q, want %q", e.Lease(), got, by)
		}
		if n := len(c.leases.bounds.texts); n > 2 {
			t.Fatalf("%d texts after %d changes of the limits", n, i+1)
		}
	}
}

// A connection whose timeout in conntrack is made shorter than two leases is express no more:
// what goes regular once in a lease would not keep it. UDP has two of them.
func TestTimeoutBecomesShort(t *testing.T) {
	t.Parallel()
	const assured = 1 << 2
	port := &onePort{port: discover.Port{Index: 7}}
	for _, test := range []struct {
		status         uint32
		udp, unassured time.Duration
		why            Refusal
	}{
		{0, 2 * time.Second, 2 * time.Second, ""},
		{0, time.Hour, time.Second, ShortTimeout},
		{0, time.Second, time.Hour, ShortTimeout},
		{assured, time.Second, time.Hour, ShortTimeout},
		{assured, time.Hour, time.Second, ""},
	} {
		conn := masqueraded(1000)
		conn.Status |= test.status
		table, _ := newTable(t, 1)
		c := New(Options{Table: table, Ports: port, Rules: port, Lease: time.Second, LeaseMax: time.Minute, Keep: func(int, datapath.Kept) {}})
		c.SetLimits(Limits{TCP: time.Hour, UDP: time.Hour, Unassured: time.Hour})
		e, err := table.Compose(contable.End{Port: 7}, conn.Orig, conn, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.placed(e)
		c.SetLimits(Limits{TCP: time.Hour, UDP: test.udp, Unassured: test.unassured})
		if got := c.Unfit(conn); got != test.why || e.Gone() != (test.why != "") {
			t.Errorf("%+v: refused by %q, gone: %v", test, got, e.Gone())
		}
	}
}
