package express

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// What conntrack has to be told about TCP connections, of which it sees few
// packets: that all data has arrived when one falls silent, or it would expire
// after minutes; to forget what it knows of acknowledgements when one has gone
// far; that it has not ended, if it goes on after an end that somebody
// else has forged, which conntrack no longer sees through; and what became of it
// after a RST, which conntrack judges by numbers that are out of date.

// timeouts are conntrack's for TCP.
type timeouts struct {
	established    time.Duration
	unacknowledged time.Duration // of an established one whose data may not have arrived
	closed         time.Duration // after a RST
}

// readTimeouts reads the settings of this namespace.
func readTimeouts() (t timeouts, err error) {
	if t.established, err = timeout("established"); err != nil {
		return t, err
	}
	if t.unacknowledged, err = timeout("unacknowledged"); err != nil {
		return t, err
	}
	t.closed, err = timeout("close")
	return t, err
}

func timeout(name string) (time.Duration, error) {
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

// tellConntrack tells about the connections that have fallen silent.
func (d *Daemon) tellConntrack(now time.Time) {
	limits, err := readTimeouts()
	if err != nil {
		d.log.Debug("looking at silent connections", "error", err)
		return
	}
	d.table.Silent(now, func(e *contable.Conentry, acknowledged bool) {
		if e.Untracked {
			return
		}
		conn, err := d.ct.Get(e.Conn.Orig)
		if err != nil || conn.ID != e.Conn.ID {
			return // its end is on its way to us
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
		if err := d.ct.UpdateTCP(e.Conn, update); err != nil {
			d.log.Debug("telling conntrack of a silent connection", "error", err)
		}
	})
}

// goneFar has conntrack forget the highest acknowledgements, and that it waits
// for any.
func (d *Daemon) goneFar(e *contable.Conentry) {
	if e.Untracked {
		return
	}
	if err := d.ct.UpdateTCP(e.Conn, conntrack.TCPUpdate{Acknowledged: true}); err != nil {
		d.log.Debug("telling conntrack how far a connection is", "error", err)
	}
}

// reset is a RST that has passed conntrack, or is about to.
type reset struct {
	conn  conntrack.Conn
	stray bool
	at    time.Time
}

// settle is how long a RST may take from the programs to conntrack: both are
// in one softirq.
const settle = 2 * time.Millisecond

// resetSeen remembers a RST that ended a Conentry.
func (d *Daemon) resetSeen(e datapath.Event, entry *contable.Conentry, now time.Time) {
	if !e.Reset || entry.Untracked {
		return
	}
	if len(d.resets) == 0 {
		d.resetDue.Reset(settle)
	}
	d.resets = append(d.resets, reset{entry.Conn, e.Stray, now})
}

// followResets corrects what conntrack has made of each RST: it closes the
// connection, unless its receiver will not believe it.
func (d *Daemon) followResets(now time.Time) {
	limits, err := readTimeouts()
	if err != nil {
		d.log.Debug("looking at connections that were reset", "error", err)
		d.resets = nil
		return
	}
	for n := 0; n < askedAtOnce && len(d.resets) > 0 && now.Sub(d.resets[0].at) >= settle; n++ {
		r := d.resets[0]
		d.resets = d.resets[1:]
		conn, err := d.ct.Get(r.conn.Orig)
		if err != nil || conn.ID != r.conn.ID {
			continue
		}
		truth := conntrack.TCPUpdate{State: conntrack.TCPClosed}
		if r.stray {
			truth = conntrack.TCPUpdate{State: conntrack.TCPEstablished, Timeout: limits.established}
		}
		if !r.stray && conn.TCPState == truth.State || conn.TCPState != conntrack.TCPEstablished && conn.TCPState != conntrack.TCPClosed ||
			conn.Timeout > limits.closed {
			continue // else no packet has been seen since the RST
		}
		if err := d.ct.UpdateTCP(conn, truth); err != nil {
			d.log.Debug("telling conntrack of a reset", "error", err)
		}
	}
	if len(d.resets) > 0 {
		d.resetDue.Reset(settle)
	}
}

// stopped is a timer that has not been started.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
