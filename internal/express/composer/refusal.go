package composer

import (
	"errors"
	"net/netip"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// Refusal is why a connection stays regular, as `scon status` and the metrics
// name it; "" if it does not.
type Refusal string

// The refusals.
const (
	Untracked      Refusal = "untracked"
	NotEstablished Refusal = "not_established"
	Helper         Refusal = "conntrack_helper"
	SeqAdj         Refusal = "sequence_adjustment"
	Zone           Refusal = "conntrack_zone"
	Offloaded      Refusal = "offloaded"
	ShortTimeout   Refusal = "short_timeout"
	TableFull      Refusal = "table_full"
	ShareUsed      Refusal = "container_share_used"
	Paused         Refusal = "paused"
	TooMany        Refusal = "too_many_candidates"
	ConntrackError Refusal = "conntrack_error"
	PerPacketRule  Refusal = "per_packet_rule"
	Multicast      Refusal = "multicast"
	LinkLocal      Refusal = "link_local"
)

var refusalText = map[Refusal]string{
	Untracked:      "conntrack does not know it",
	NotEstablished: "TCP is not established in both directions",
	Helper:         "a conntrack helper reads its packets",
	SeqAdj:         "conntrack rewrites its sequence numbers",
	Multicast:      "it is multicast or broadcast, which may leave by several devices",
	LinkLocal:      "it has a link-local address, which may be of another host on each link",
	Zone:           "it is in a conntrack zone, where addresses need not be unique",
	Offloaded:      "a flowtable forwards it, or the action ct of tc",
	ShortTimeout:   "conntrack forgets it sooner than after two leases without a packet (its timeouts are in net.netfilter)",
	TableFull:      "the table is full (connections in the configuration)",
	ShareUsed:      "its container has used up its share (per_container_share in the configuration)",
	Paused:         "its container is paused",
	TooMany:        "its container opens too many connections at once",
	ConntrackError: "conntrack refused to answer",
	PerPacketRule:  "a rule that judges single packets may touch it",
}

// Text explains a refusal to the user, as the end of a sentence.
func (r Refusal) Text() string { return refusalText[r] }

// Unfit returns why a connection that conntrack knows cannot become a Conentry.
func (c *Composer) Unfit(conn conntrack.Conn) Refusal {
	if why := unfitAddrs(conn.Orig); why != "" {
		return why
	}
	switch {
	case !conn.Confirmed() || conn.Dying():
		return Untracked
	case conn.Helper != "":
		return Helper
	case conn.SeqAdj:
		return SeqAdj
	case conn.Zone != 0:
		return Zone
	case conn.Offloaded():
		return Offloaded
	case min(conn.Timeout, c.leases.limits.timeout(conn)) < 2*c.lease:
		return ShortTimeout
	case conn.Orig.Proto == protoTCP && (conn.TCPState != conntrack.TCPEstablished || !conn.Assured()):
		return NotEstablished
	}
	return ""
}

// broadcast is the limited broadcast address. The programs recognise a network's
// own broadcast address by the MAC address.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// unfitAddrs returns what about a connection's addresses rules out a Conentry.
func unfitAddrs(orig conntrack.Tuple) Refusal {
	switch to := orig.Dst.Addr(); {
	case to.IsMulticast() || to == broadcast:
		return Multicast
	case to.Is6() && (to.IsLinkLocalUnicast() || orig.Src.Addr().IsLinkLocalUnicast()):
		return LinkLocal
	}
	return ""
}

// tableRefusal names why the table refuses a connection, "" if it may be tried
// again.
func tableRefusal(err error) Refusal {
	switch {
	case errors.Is(err, contable.ErrFull):
		return TableFull
	case errors.Is(err, contable.ErrShare):
		return ShareUsed
	}
	return ""
}
