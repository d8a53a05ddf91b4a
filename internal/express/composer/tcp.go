package composer

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// TCP keeps conntrack's view of connections true, of TCP above all. Conntrack sees few
// packets of a connection with a Conentry, so TCP corrects it in five cases: a silent
// connection would expire too early by what conntrack has not seen of it; one whose
// data has all arrived would expire after minutes; sequence
// numbers that have advanced too much need new ones to compare with; a forged end
// closes a connection that goes on; and a RST is judged by outdated numbers.
//
// It owns the list of RSTs that conntrack is about to see.
type TCP struct {
	table  *contable.Table
	ct     *conntrack.Client
	log    *slog.Logger
	resets []reset // in the order of their times
	due    *time.Timer
}

// NewTCP returns a TCP for the connections of a table.
func NewTCP(table *contable.Table, ct *conntrack.Client, log *slog.Logger) *TCP {
	t := &TCP{table: table, ct: ct, log: log, due: time.NewTimer(time.Hour)}
	t.due.Stop()
	return t
}

// UpdateSilent updates conntrack about connections in n slots of the table that have
// fallen silent. It is called once a second, before Table.Sweep.
func (t *TCP) UpdateSilent(from, n uint32, now time.Time) {
	readLimits := sync.OnceValues(readTimeouts)
	t.table.Silent(from, n, now, func(e *contable.Conentry, acknowledged bool) {
		switch unseen := t.table.Unseen(e, now); {
		case e.Untracked:
		case t.table.Orig(e).Proto == protoTCP:
			if limits, err := readLimits(); err != nil {
				t.log.Debug("updating silent connections", "error", err)
			} else {
				t.updateSilent(e, acknowledged, unseen, limits)
			}
		case unseen > time.Second:
			t.extend(e, unseen)
		}
	})
}

// extend gives a UDP connection the time that conntrack has counted before its
// latest packet.
func (t *TCP) extend(e *contable.Conentry, unseen time.Duration) {
	conn, err := t.ct.Get(t.table.Orig(e))
	if err != nil || !t.table.Same(e, conn) {
		return // the announcement of its end follows
	}
	if err := t.ct.SetTimeout(conn, conn.Timeout+unseen); err != nil {
		t.log.Debug("extending a silent connection in conntrack", "error", err)
	}
}

func (t *TCP) updateSilent(e *contable.Conentry, acknowledged bool, unseen time.Duration, limits timeouts) {
	conn, err := t.ct.Get(t.table.Orig(e))
	if err != nil || !t.table.Same(e, conn) {
		return // the announcement of its end follows
	}
	update := conntrack.TCPUpdate{Acknowledged: acknowledged}
	ended := conn.TCPState != conntrack.TCPEstablished
	goneOn := e.SeenEnded(ended)
	if ended && !goneOn {
		return
	}
	if ended {
		update.State, update.Timeout = conntrack.TCPEstablished, limits.unacknowledged
	}
	if acknowledged && (ended || conn.Unacknowledged() && conn.Timeout <= limits.unacknowledged) {
		update.Timeout = limits.established
	}
	if update.Timeout == 0 && unseen > time.Second {
		update.Timeout = conn.Timeout + unseen
	}
	if err := t.ct.UpdateTCP(conn, update); err != nil {
		t.log.Debug("updating a silent connection in conntrack", "error", err)
	}
}

// MovedOn makes conntrack forget a connection's highest acknowledgements, and
// that it waits for any: the sequence numbers have advanced too much to compare.
func (t *TCP) MovedOn(e *contable.Conentry) {
	if e.Untracked {
		return
	}
	if err := t.ct.UpdateTCP(t.table.Conn(e), conntrack.TCPUpdate{Acknowledged: true}); err != nil {
		t.log.Debug("updating acknowledgements in conntrack", "error", err)
	}
}

// reset is a RST that has passed conntrack, or is about to.
type reset struct {
	conn  conntrack.Conn
	early bool // only conn.Orig is known, one of its directions
	stray bool // its receiver ignores it
	at    time.Time
}

// resetDelay is how long a RST may take from the programs to conntrack: both run
// in one softirq.
const resetDelay = 2 * time.Millisecond

// Reset remembers a RST that ended a Conentry; stray says that its receiver
// ignores it.
func (t *TCP) Reset(e *contable.Conentry, stray bool, now time.Time) {
	if e.Untracked {
		return
	}
	t.reset(reset{conn: t.table.Conn(e), stray: stray, at: now})
}

// ResetEarly does what Reset does for an early Conentry, of which tuple is one direction.
func (t *TCP) ResetEarly(tuple conntrack.Tuple, stray bool, now time.Time) {
	t.reset(reset{conn: conntrack.Conn{Orig: tuple}, early: true, stray: stray, at: now})
}

func (t *TCP) reset(r reset) {
	if len(t.resets) == 0 {
		t.due.Reset(resetDelay)
	}
	t.resets = append(t.resets, r)
}

// Due delivers the time when CorrectResets has to be called.
func (t *TCP) Due() <-chan time.Time { return t.due.C }

// CorrectResets corrects what conntrack has made of each RST: the connection is
// closed, unless the receiver ignores the RST.
func (t *TCP) CorrectResets(now time.Time) {
	limits, err := readTimeouts()
	if err != nil {
		t.log.Debug("updating reset connections", "error", err)
		t.resets = nil
		return
	}
	for n := 0; n < polledAtOnce && len(t.resets) > 0 && now.Sub(t.resets[0].at) >= resetDelay; n++ {
		t.correct(t.resets[0], limits)
		t.resets = t.resets[1:]
	}
	if len(t.resets) > 0 {
		t.due.Reset(resetDelay)
	}
}

func (t *TCP) correct(r reset, limits timeouts) {
	conn, err := t.ct.Get(r.conn.Orig)
	if err != nil || !r.early && !conn.Same(r.conn) {
		return
	}
	truth := conntrack.TCPUpdate{State: conntrack.TCPClosed}
	if r.stray {
		truth = conntrack.TCPUpdate{State: conntrack.TCPEstablished, Timeout: limits.established}
	}
	if !r.stray && conn.TCPState == truth.State || conn.TCPState != conntrack.TCPEstablished && conn.TCPState != conntrack.TCPClosed ||
		conn.Timeout > limits.closed {
		return // right already, or conntrack has seen a packet since the RST
	}
	if err := t.ct.UpdateTCP(conn, truth); err != nil {
		t.log.Debug("updating a reset connection in conntrack", "error", err)
	}
}

// timeouts are conntrack's for TCP.
type timeouts struct {
	established    time.Duration
	unacknowledged time.Duration // of an established one whose data may not have arrived
	closed         time.Duration // after a RST
}

// readTimeouts reads the settings of this namespace.
func readTimeouts() (t timeouts, err error) {
	if t.established, err = readTimeout("established"); err != nil {
		return t, err
	}
	if t.unacknowledged, err = readTimeout("unacknowledged"); err != nil {
		return t, err
	}
	t.closed, err = readTimeout("close")
	return t, err
}

func readTimeout(name string) (time.Duration, error) {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + name)
	if err != nil {
		return 0, fmt.Errorf("reading conntrack's timeouts: %w", err)
	}
	seconds, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("reading conntrack's timeout %s: %w", name, err)
	}
	return time.Duration(seconds) * time.Second, nil
}
