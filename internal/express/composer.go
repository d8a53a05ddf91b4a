package express

import (
	"errors"
	"net/netip"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// The composer (scon.txt, section V-B3): from a candidate to a Conentry.

// Why a connection stays regular, as `scon explain` and `scon status` say it.
const (
	refusedUntracked   = "untracked"            // conntrack does not know it
	refusedNotAssured  = "not_established"      // TCP: not established both ways, yet
	refusedHelper      = "conntrack_helper"     // somebody reads along
	refusedSeqAdj      = "sequence_adjustment"  // numbers are rewritten
	refusedZone        = "conntrack_zone"       // tuples are not unique
	refusedTimeout     = "short_timeout"        // conntrack forgets it between two leases
	refusedFull        = "table_full"           //
	refusedShare       = "container_share_used" //
	refusedPaused      = "paused"               //
	refusedRate        = "too_many_candidates"  // of one container
	refusedByConntrack = "conntrack_error"      //
	refusedRule        = "per_packet_rule"      // policy.go
	refusedGroup       = "multicast"            // or broadcast: may leave by several devices
	refusedLinkLocal   = "link_local"           // an address may be of several hosts
)

// heard takes what the programs tell.
func (d *Daemon) heard(e datapath.Event) {
	now := time.Now()
	if e.Closed || e.Far {
		switch entry := d.table.At(e.Slot); {
		case entry == nil: // gone in the meantime
		case e.Far:
			d.goneFar(entry)
		default:
			d.resetSeen(e, entry, now)
			d.table.Retire(entry, now)
		}
		return
	}
	tuple, index := contable.TupleOf(e.Key, e.Addrs6)
	p := d.devices.ports[index]
	if p == nil {
		return
	}
	var why string
	if entry := d.table.Lookup(tuple); entry != nil {
		why = d.join(entry, p, tuple, now)
	} else {
		why = d.compose(p, tuple, now)
	}
	if why != "" {
		d.refuse(p, why)
	}
}

// refuse counts why a connection of a container stays regular.
func (d *Daemon) refuse(p *port, why string) {
	d.refused[why]++
	p.refused[why]++
}

// compose makes a Conentry for a connection of a container, or says why not.
func (d *Daemon) compose(p *port, tuple conntrack.Tuple, now time.Time) (refused string) {
	if p.paused {
		return refusedPaused
	}
	if !p.candidates.allow(now, candidatesPerSecond, candidatesAtOnce) {
		return refusedRate
	}
	conn, err := d.ct.Get(tuple)
	if errors.Is(err, conntrack.ErrNotFound) {
		if why, both := d.pair(p, tuple, now); both {
			return why
		}
		return d.discard(p, tuple, now)
	}
	if err != nil {
		return refusedByConntrack
	}
	if why := d.unfit(conn); why != "" {
		return why
	}
	k := keptConn{port: p.Index, initiator: tuple == conn.Orig}
	if rule, touched := d.touches(k, conn); touched {
		d.keepRegular(k, conn, rule)
		return refusedRule
	}
	// Packets that conntrack does not see must not make those that it sees
	// INVALID. Both directions, this one connection: never the sysctl.
	if conn.Orig.Proto == protoTCP {
		switch err := d.ct.UpdateTCP(conn, conntrack.TCPUpdate{}); {
		case errors.Is(err, conntrack.ErrNotFound):
			return refusedUntracked
		case err != nil:
			return refusedByConntrack
		}
	}
	e, err := d.table.Compose(d.end(p, tuple.Src.Addr()), tuple, conn, now)
	if err == nil {
		d.counts.composed++
		d.confirm(e, now)
		d.unannounced.add(e)
	}
	return refusedFor(err)
}

// confirm asks again: the end of a connection is told only once it has a
// Conentry, and it may have come just before. One that conntrack has not seen it
// may see by now.
func (d *Daemon) confirm(e *contable.Conentry, now time.Time) {
	conn, err := d.ct.Get(e.Conn.Orig)
	if e.Untracked {
		if !errors.Is(err, conntrack.ErrNotFound) {
			d.table.Retire(e, now)
		}
		return
	}
	if err != nil || conn.ID != e.Conn.ID || d.unfit(conn) != "" {
		d.table.Retire(e, now)
	}
}

// broadcast is that of every network; a network's own is known by its MAC
// address, to the programs.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// unfitAddrs says what about the addresses of a connection the express way could
// not keep.
func unfitAddrs(orig conntrack.Tuple) string {
	switch to := orig.Dst.Addr(); {
	case to.IsMulticast() || to == broadcast:
		return refusedGroup
	case to.Is6() && (to.IsLinkLocalUnicast() || orig.Src.Addr().IsLinkLocalUnicast()):
		return refusedLinkLocal
	}
	return ""
}

// unfit says what about a connection the express way could not keep.
func (d *Daemon) unfit(c conntrack.Conn) string {
	if why := unfitAddrs(c.Orig); why != "" {
		return why
	}
	switch {
	case !c.Confirmed() || c.Dying():
		return refusedUntracked
	case c.Helper != "":
		return refusedHelper
	case c.SeqAdj:
		return refusedSeqAdj
	case c.Zone != 0:
		return refusedZone
	case c.Timeout < 2*d.opts.Config.Lease:
		return refusedTimeout
	case c.Orig.Proto == protoTCP && (c.TCPState != conntrack.TCPEstablished || !c.Assured()):
		return refusedNotAssured
	}
	return ""
}

// limiter bounds how much of the daemon's time one container can take, so that
// a flood from one cannot keep the daemon from the others.
type limiter struct {
	tokens float64
	last   time.Time
}

// How many candidates of a container are looked at, and of how many it is asked
// whether the rules drop them, which takes ten times as long.
const (
	candidatesPerSecond = 2000
	candidatesAtOnce    = 4000
	droppablePerSecond  = 100
	droppableAtOnce     = 200
)

func (l *limiter) allow(now time.Time, perSecond, atOnce float64) bool {
	if l.last.IsZero() {
		l.tokens = atOnce
	}
	l.tokens = min(l.tokens+now.Sub(l.last).Seconds()*perSecond, atOnce)
	l.last = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}
