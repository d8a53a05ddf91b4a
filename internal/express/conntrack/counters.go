package conntrack

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Attributes of a connection's counters.
const (
	attrCountersOrig  = 9
	attrCountersReply = 10

	attrCountersPackets = 1
	attrCountersBytes   = 2
)

// Counters are what conntrack has counted of one direction of a connection. A
// packet is an skb, before segmentation; its bytes are those of the IP packet.
type Counters struct {
	Packets, Bytes uint64
}

// Counted is a connection whose packets conntrack counts. It does so if
// net.netfilter.nf_conntrack_acct was 1 when the connection began.
type Counted struct {
	Orig     Tuple
	ID       uint32 // Conn.ID
	Zone     uint16
	Counters [2]Counters // of the original and the reply direction
}

// DumpCounters calls fn for every connection that is counted, as Dump does.
func (c *Client) DumpCounters(fn func(Counted)) error {
	err := do(c.dump, msgGet, unix.NLM_F_DUMP, unix.AF_UNSPEC, nil, func(m nlmsg.Message) {
		if counted, ok := parseCounted(m.Data); ok {
			fn(counted)
		}
	})
	if err != nil {
		return fmt.Errorf("dump the counters of connections: %w", err)
	}
	return nil
}

// parseCounted parses a message, which begins with struct nfgenmsg. It reports
// false if conntrack does not count the connection.
func parseCounted(b []byte) (c Counted, ok bool) {
	if len(b) < nlmsg.SizeofNfgenmsg {
		return Counted{}, false
	}
	for typ, data := range nlmsg.Attributes(b[nlmsg.SizeofNfgenmsg:]) {
		switch typ {
		case attrTupleOrig:
			c.Orig = parseTuple(data)
		case attrID:
			c.ID = be32(data)
		case attrZone:
			c.Zone = be16(data)
		case attrCountersOrig:
			c.Counters[0], ok = parseCounters(data), true
		case attrCountersReply:
			c.Counters[1], ok = parseCounters(data), true
		}
	}
	return c, ok && c.Orig.whole()
}

// parseCounters parses the payload of a counters attribute.
func parseCounters(b []byte) (c Counters) {
	for typ, data := range nlmsg.Attributes(b) {
		if len(data) != 8 {
			continue
		}
		switch typ {
		case attrCountersPackets:
			c.Packets = binary.BigEndian.Uint64(data)
		case attrCountersBytes:
			c.Bytes = binary.BigEndian.Uint64(data)
		}
	}
	return c
}
