package conntrack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

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
	ID       uint32      // Conn.ID
	Counters [2]Counters // of the original and the reply direction
}

// Counters calls fn for each of several connections that is counted, given by tuples of
// either direction and in no zone, with few system calls. It costs as much as there are tuples, however
// many connections conntrack has.
func (c *Client) Counters(all []Tuple, fn func(Counted)) error {
	for part := range slices.Chunk(all, askedAtOnce) {
		requests := make([]nlmsg.Request, len(part))
		for i, t := range part {
			requests[i] = nlmsg.Request{Type: msgGet, Data: appendQuestion(nil, t)}
		}
		var refused error
		err := c.dump.Each(requests, func(_ int, m nlmsg.Message, err error) {
			if err != nil && !errors.Is(err, unix.ENOENT) {
				refused = err
			} else if counted, ok := parseCounted(m.Data); err == nil && ok {
				fn(counted)
			}
		})
		if err = cmp.Or(err, refused); err != nil {
			return fmt.Errorf("read the counters of connections: %w", err)
		}
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
