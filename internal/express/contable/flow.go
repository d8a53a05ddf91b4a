package contable

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Flow is a Conentry as seen at one moment. Pairs are the original and the
// reply direction of the connection.
type Flow struct {
	Port, Peer     int
	Conn           conntrack.Conn
	Opened         bool // by the container; otherwise by the other end
	Decided        bool // the decision of at least one direction is recorded
	Packets, Bytes [2]uint64
	Age, Idle      time.Duration
	Left           time.Duration // of the longer lease
	Oif            int           // 0 until it is recorded
	Bridged        bool          // one direction is bridged, without an IP router
	NextHop        net.HardwareAddr
	// Overlay is the device that packets leave by if they skip Oif, a tunnel's
	// device; 0 otherwise.
	Overlay int
}

// Flow reads a Conentry.
func (t *Table) Flow(e *Conentry, now time.Time) Flow {
	idle := t.observe(e, now)
	f := Flow{
		Port:   e.Port(),
		Peer:   e.Peer(),
		Conn:   t.Conn(e),
		Opened: e.initiator,
		Age:    t.Age(e, now),
		Idle:   idle,
	}
	for dir, slot := range e.slots() {
		h := t.half(slot)
		f.Packets[dir] = atomic.LoadUint64(&h.Packets)
		f.Bytes[dir] = atomic.LoadUint64(&h.Bytes)
		if h.OutDev == 0 || h.Generation != t.settings.Generation {
			continue
		}
		f.Decided = true
		f.Bridged = f.Bridged || h.Flags&datapath.PathBridged != 0
		if used := t.jiffies() - h.LeaseFrom; used < h.Lease {
			f.Left = max(f.Left, time.Duration(h.Lease-used)*t.opts.Tick)
		}
	}
	if out := t.half(e.outbound); out.OutDev != 0 {
		f.Oif = int(out.OutDev)
		f.NextHop = macOf(out.OutMacs)
		if outers := t.outers[e.outbound/datapath.PageSlots]; outers != nil {
			if o := &outers[e.outbound%datapath.PageSlots]; o.Generation == t.settings.Generation {
				f.Overlay = int(o.Dev)
			}
		}
	}
	return f
}

// macsOf returns the first 8 bytes of an Ethernet header: the destination, and zeros for
// the source.
func macsOf(mac [6]byte) (macs uint64) {
	for i, b := range mac {
		macs |= uint64(b) << (8 * i)
	}
	return macs
}

// macOf returns the destination of the first bytes of an Ethernet header.
func macOf(macs uint64) net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	for i := range mac {
		mac[i] = byte(macs >> (8 * i))
	}
	return mac
}
