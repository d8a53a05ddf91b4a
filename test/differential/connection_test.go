package differential

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket/layers"

	"github.com/scon-project/scon/test/bed/lab"
)

// conn is a connection of a case, as seen by its client.
type conn struct {
	Kind     string // out, published, routed, lan or hairpin
	Proto    layers.IPProtocol
	From, To int // nodes
	Src, Dst netip.AddrPort
}

func (c conn) String() string {
	return fmt.Sprintf("%s %v %s %v -> %s %v", c.Kind, c.Proto, nodeNames[c.From], c.Src, nodeNames[c.To], c.Dst)
}

// Directions of a connection.
const (
	orig = iota
	reply
)

// view is the connection as one end sees it.
type view struct {
	node     int
	from, to net.HardwareAddr
	src, dst netip.AddrPort
}

// talk is the state of a connection. Packets of both worlds are made from the packets
// that arrive in the world without SCON.
type talk struct {
	conn
	makeup
	views   [2]view
	learned bool        // the server has received a packet and replies to its source
	seq     [2]uint32   // next sequence number of each direction's sender
	arrived [2]uint32   // acknowledgement number of each direction's receiver
	last    [2]captured // the latest sound packet of each direction, as it arrived
	asSent  [2]shot     // and as it was sent
	// The same in the world with SCON.
	model     [2]captured
	modelSent [2]shot
	lost      [2]bool // the latest sound packet has arrived nowhere
}

func newTalk(c conn, m makeup) *talk {
	t := &talk{conn: c, makeup: m, seq: [2]uint32{1 << 20, 3 << 28}}
	t.views[orig] = view{node: c.From, from: nodeMACs[c.From], to: t.hop(c.From, c.To, c.Dst.Addr()), src: c.Src, dst: c.Dst}
	t.views[reply] = view{node: c.To, from: nodeMACs[c.To], to: t.hop(c.To, c.From, c.Src.Addr()), src: c.Dst, dst: c.Src}
	return t
}

// hop returns the MAC address that packets of the connection are sent to. In the containers'
// network edge is their gateway, but not for what device translates.
func (t *talk) hop(from, to int, addr netip.Addr) net.HardwareAddr {
	if t.port && to == edge && t.Kind != "published" && !addr.IsPrivate() {
		return edgeMAC
	}
	return t.nextHop(from, to, addr)
}

// nextHop returns the MAC address that a node sends to for an address of
// another node, or for one that device translates.
func (m makeup) nextHop(from, to int, addr netip.Addr) net.HardwareAddr {
	switch {
	case from == edge && !m.port:
		return uplinkMAC
	case to != edge && (addr == lab.ContainerAddr(to) || addr == lab.ContainerAddr6(to)):
		return nodeMACs[to]
	default:
		return bridgeMAC
	}
}

// learn records a valid packet that has arrived.
func (t *talk) learn(s shot, c captured, k chance) {
	src, dst := tupleOf([]byte(c.data))
	if !k.ports[src.Port()] || !k.ports[dst.Port()] {
		return // chosen at random: differs in the other world
	}
	t.last[s.dir], t.asSent[s.dir] = c, s
	if s.dir != orig || t.learned {
		return
	}
	b := []byte(c.data)
	t.views[reply] = view{node: c.to, from: b[:6], to: t.hop(c.to, t.From, src.Addr()), src: dst, dst: src}
	t.learned = true
}

// acknowledge records the sequence number of a packet that has arrived, if its
// receiver expects it.
func (t *talk) acknowledge(s shot, c captured) {
	src, dst := tupleOf([]byte(c.data))
	if back := t.views[1-s.dir]; c.to == back.node && dst == back.src && src == back.dst {
		t.arrived[s.dir] = s.ends
	}
}

// imitate records the fate of a valid packet in the world with SCON.
func (t *talk) imitate(s shot, all []captured) {
	c, ok := s.arrived(all)
	if t.lost[s.dir] = !ok; ok {
		t.model[s.dir], t.modelSent[s.dir] = c, s
	}
}

// form returns a valid packet of a direction with a payload.
func (t *talk) form(dir int, id uint16, payload []byte) form {
	v := t.views[dir]
	f := form{
		from: v.from, to: v.to, ttl: 64, id: id, proto: t.Proto, src: v.src, dst: v.dst, payload: payload,
	}
	f.tcp = layers.TCP{Seq: t.seq[dir], Ack: t.arrived[1-dir], ACK: true, PSH: len(payload) > 0, Window: 0xfaf0}
	return f
}
