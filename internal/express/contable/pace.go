package contable

import (
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

// pace is how fast the packets of a Conentry use up its leases.
type pace struct {
	packets [2]uint32 // low bits, outbound and inbound, at the last sweep
	at      millis    // of that sweep; 0 before the first
	rate    float32   // of the busier direction, packets per second between two sweeps
}

// measure is called by each sweep.
func (p *pace) measure(packets [2]uint32, at millis) {
	if passed := at - p.at; p.at != 0 && passed > 0 {
		p.rate = float32(max(packets[0]-p.packets[0], packets[1]-p.packets[1])) * 1000 / float32(passed)
	}
	p.packets, p.at = packets, at
}

func (t *Table) measure(e *Conentry, now time.Time) {
	out, in := t.half(e.outbound), t.half(e.inbound)
	e.pace.measure([2]uint32{uint32(atomic.LoadUint64(&out.Packets)), uint32(atomic.LoadUint64(&in.Packets))}, millisOf(t.since(now)))
}

// LeasePackets returns the packets of one direction after which a lease of a Conentry ends.
func (t *Table) LeasePackets(e *Conentry) uint32 {
	if t.half(e.outbound).Key.Side&datapath.SideUDP == 0 {
		return min(t.opts.LeasePackets, datapath.TCPLeasePackets)
	}
	return t.opts.LeasePackets
}

// EndsByPackets reports whether, at the rate of the last second or so, the packets of a
// Conentry end a lease before its time does, and how many leases they end in a second.
func (t *Table) EndsByPackets(e *Conentry) (perSecond float64, ends bool) {
	perSecond = float64(e.pace.rate) / float64(t.LeasePackets(e))
	return perSecond, perSecond*e.Lease().Seconds() > 1
}
