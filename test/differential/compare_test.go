package differential

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket/layers"
)

// excuse is a permitted difference, documented in docs/safety.md.
type excuse int

const (
	notExcused excuse = iota
	// A packet with a wrong checksum: INVALID to conntrack, forwarded by the express
	// path, dropped by the receiver.
	wrongChecksum
	// The daemon has not processed a change yet.
	notHeard
)

// idOf returns a frame's IP id, or the low bits of its flow label; 0 if it has
// none.
func idOf(data string) uint16 {
	if len(data) < ethLen+8 {
		return 0
	}
	if isIPv6(data) {
		return binary.BigEndian.Uint16([]byte(data[ethLen+2:]))
	}
	return binary.BigEndian.Uint16([]byte(data[ethLen+4:]))
}

// itemOf returns the item of a packet with an IP id.
func itemOf(id uint16) uint16 { return id - id%segmentIDs }

// causes finds the item that a packet results from.
type causes []shot

// of returns the item that a packet results from: by its own id, by the id of
// the packet that an ICMP error quotes, or by the packet that a RST of device
// answers; 0 if unknown.
func (all causes) of(c captured) uint16 {
	b := []byte(c.data)
	l4At := l4Of(b)
	if id := idOf(c.data); isIPv6(b) && id == 0 && len(b) > l4At+8+ip6Len {
		if protoOf(b) == layers.IPProtocolICMPv6 {
			return itemOf(binary.BigEndian.Uint16(b[l4At+8+2:]))
		}
	}
	switch id := idOf(c.data); {
	case id != 0 || len(b) < l4At+8+ipLen-8:
		return itemOf(id)
	case protoOf(b) == layers.IPProtocolICMPv4 && len(b) > l4At+8+6:
		return itemOf(binary.BigEndian.Uint16(b[l4At+8+4:]))
	case protoOf(b) == layers.IPProtocolTCP:
		return all.answered(b)
	default:
		return 0
	}
}

// answered finds the packet that device answers with a RST; it does not answer
// packets with a wrong checksum.
func (all causes) answered(rst []byte) uint16 {
	src, dst := tupleOf(rst)
	l4At := l4Of(rst)
	for _, s := range all {
		if s.excuse == wrongChecksum || len(s.frame) < l4At+tcpLen || protoOf(s.frame) != layers.IPProtocolTCP || isIPv6(s.frame) != isIPv6(rst) {
			continue
		}
		from, to := tupleOf(s.frame)
		if from == dst && to == src && string(s.frame[l4At+8:l4At+12]) == string(rst[l4At+4:l4At+8]) {
			return uint16(s.item)
		}
	}
	return 0
}

// compare returns the first packet with different fates.
func compare(k chance, talks []*talk, shots []shot, plain, scon []captured) *difference {
	if slices.EqualFunc(plain, scon, k.alike) {
		return nil
	}
	cause := func(c captured) uint16 { return causes(shots).of(k.known(c)) }
	fates := func(list []captured) map[uint16][]captured {
		m := make(map[uint16][]captured)
		for _, c := range list {
			m[cause(c)] = append(m[cause(c)], c)
		}
		return m
	}
	plainFates, sconFates := fates(plain), fates(scon)
	excused := make(map[uint16]bool)
	for _, s := range shots {
		id := uint16(s.item)
		a, b := plainFates[id], sconFates[id]
		if slices.EqualFunc(a, b, k.alike) {
			continue
		}
		if s.excuse != notExcused && talks[s.conn].likeOthers(s, b) {
			excused[id] = true
			continue
		}
		return &difference{of: fmt.Sprintf("%04x", id), what: fmt.Sprintf("packet %04x has another fate\nsent by %s%s\nwithout SCON: %swith SCON: %s",
			id, nodeNames[s.node], decode(string(s.frame)), list(a), list(b))}
	}
	of := make(map[uint16]way)
	for _, s := range shots {
		of[uint16(s.item)] = way{conn: s.conn + 1, dir: s.dir}
	}
	ways := func(list []captured) map[way][]captured {
		m := make(map[way][]captured)
		for _, c := range list {
			id := cause(c)
			w := of[id]
			if b := []byte(k.known(c).data); w.conn == 0 && len(b) >= l4Of(b)+udpLen {
				w.src, w.dst = tupleOf(b)
			}
			if !excused[id] {
				m[w] = append(m[w], c)
			}
		}
		return m
	}
	plainWays, sconWays := ways(plain), ways(scon)
	for _, w := range slices.AppendSeq(slices.Collect(maps.Keys(plainWays)), maps.Keys(sconWays)) {
		if d := firstOf(k, plainWays[w], sconWays[w]); d != nil {
			return d
		}
	}
	return nil
}

// way is what has an order: a direction of a connection or, of packets without a known cause,
// their addresses and ports. Packets of two directions come by two devices, and on a busy machine
// the kernel may take those of either first: an error of the host about one overtook the other.
type way struct {
	conn     int // from 1 on
	dir      int
	src, dst netip.AddrPort
}

// firstOf returns the first packet of a connection that is another one, or has another
// place. Those of several connections have no order: express packets pass by the queues
// in which others wait.
func firstOf(k chance, plain, scon []captured) *difference {
	for i := range max(len(plain), len(scon)) {
		if i < len(plain) && i < len(scon) && k.alike(plain[i], scon[i]) {
			continue
		}
		return &difference{of: "order", what: fmt.Sprintf("unexpected packets or another order, from the connection's packet %d on\nwithout SCON: %swith SCON: %s",
			i, list(plain[min(i, len(plain)):]), list(scon[min(i, len(scon)):]))}
	}
	return nil
}

// dscpOf returns the DSCP bits of a frame's header.
func dscpOf(b []byte) [2]byte {
	if isIPv6(b) {
		return [2]byte{b[ethLen] & 0x0f, b[ethLen+1] & 0xc0}
	}
	return [2]byte{b[ethLen+1] & 0xfc}
}

// likeOthers reports whether a packet's fate with SCON is that of the latest
// valid packet of its direction: rewritten likewise, and nothing else.
func (t *talk) likeOthers(s shot, got []captured) bool {
	ref, sent := t.model[s.dir], t.modelSent[s.dir]
	if len(got) == 0 && s.excuse == notHeard {
		return t.lost[s.dir]
	}
	if len(got) != 1 || ref.data == "" {
		return false
	}
	c, in, out, like := got[0], s.frame, []byte(got[0].data), []byte(ref.data)
	l4At, addrs := l4Of(in), addrsOf(in)
	if c.to != ref.to || c.pkttype != ref.pkttype || len(out) > len(in) || len(out) < l4At+4 {
		return false
	}
	want := slices.Clone(in[:len(out)])
	copy(want, like[:12])                        // MAC addresses
	copy(want[addrs:l4At+4], like[addrs:l4At+4]) // addresses and ports
	if dscpOf(sent.frame) != dscpOf(in) {
		return false
	}
	if isIPv6(in) {
		want[ethLen] = like[ethLen]
		want[ethLen+1] = like[ethLen+1]&0xc0 | in[ethLen+1]&0x3f
		want[ethLen+7] -= sent.frame[ethLen+7] - like[ethLen+7] // a bridge does not decrement it
	} else {
		want[ethLen+1] = like[ethLen+1]&0xfc | in[ethLen+1]&3
		want[ethLen+8] -= sent.frame[ethLen+8] - like[ethLen+8]
		fixIP(want)
	}
	at := l4At + 16
	if t.Proto == layers.IPProtocolUDP {
		at = l4At + 6
	}
	if len(want) < at+2 {
		return false
	}
	// The checksum's error must stay the same.
	copy(want[at:], out[at:at+2])
	wrong := func(b []byte) uint16 {
		s := sum(b[addrs:])
		if s == 0xffff {
			s = 0
		}
		return s
	}
	return string(want) == string(out) && wrong(in[:len(out)]) == wrong(out)
}

func list(all []captured) string {
	if len(all) == 0 {
		return "nothing\n"
	}
	var b strings.Builder
	for i, c := range all {
		if i == 3 {
			fmt.Fprintf(&b, "and %d more\n", len(all)-i)
			break
		}
		fmt.Fprintf(&b, "at %s (kind %d, tag %q, tunnel %q, offload %x)%s", nodeNames[c.to], c.pkttype, c.vlan, c.outer, c.offloads, decode(c.data))
	}
	return b.String()
}

// decode formats a frame.
func decode(data string) string { return "\n" + describe(data) }
