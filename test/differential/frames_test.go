package differential

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/gopacket/gopacket/layers"
)

// shot is a frame that is sent in both worlds.
type shot struct {
	item    int // its number
	node    int
	offload offload
	frame   []byte
	conn    int
	dir     int
	sound   bool   // a valid packet of the connection
	ends    uint32 // TCP: the next sequence number, if the packet advances it
	excuse  excuse // documented difference
}

// maker makes the frames of an item.
type maker struct {
	*talk
	index int // of the connection
	dir   int
	id    uint16
	item  int
	r     *rand.Rand
	shots []shot
}

// frame adds a frame from the direction's sender.
func (m *maker) frame(b []byte) *shot {
	m.shots = append(m.shots, shot{item: m.item, node: m.views[m.dir].node, frame: b, conn: m.index, dir: m.dir})
	return &m.shots[len(m.shots)-1]
}

// payload returns n bytes that are unique to the packet.
func (m *maker) payload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(m.r.Uint32())
	}
	return b
}

// data returns the direction's next packet with n bytes.
func (m *maker) data(n int) form { return m.form(m.dir, m.id, m.payload(n)) }

// some returns a valid packet of random length, to be damaged.
func (m *maker) some() form { return m.data(m.r.IntN(200)) }

// send adds a valid packet.
func (m *maker) send(f form) {
	m.count(f, m.frame(f.bytes())).sound = true
}

// count advances the sender's sequence number by a packet.
func (m *maker) count(f form, s *shot) *shot {
	if !m.isTCP() {
		return s
	}
	m.seq[m.dir] += uint32(len(f.payload))
	if f.tcp.SYN || f.tcp.FIN {
		m.seq[m.dir]++
	}
	s.ends = m.seq[m.dir]
	return s
}

func (m *maker) isTCP() bool { return m.Proto == layers.IPProtocolTCP }

func (m *maker) isIPv6() bool { return m.Src.Addr().Is6() }

// l4At returns the offset of TCP or UDP in the connection's valid packets.
func (m *maker) l4At() int {
	if m.isIPv6() {
		return ethLen + ip6Len
	}
	return ethLen + ipLen
}

// synArrived reports whether the latest valid packet of the client that has arrived is
// a SYN.
func (m *maker) synArrived() bool {
	last := m.asSent[orig].frame
	return last != nil && last[m.l4At()+13]&2 != 0
}

// checksumAt returns the offset of the TCP or UDP checksum.
func (m *maker) checksumAt() int {
	if m.isTCP() {
		return m.l4At() + 16
	}
	return m.l4At() + 6
}

// flagged adds a TCP packet with unexpected flags.
func (m *maker) flagged(set func(t *layers.TCP)) {
	if !m.isTCP() {
		return
	}
	f := m.data(0)
	set(&f.tcp)
	m.frame(f.bytes())
}

// fixTCP corrects a packet's TCP checksum.
func (m *maker) fixTCP(b []byte) {
	at := m.l4At()
	b[at+16], b[at+17] = 0, 0
	n := len(b) - at
	binary.BigEndian.PutUint16(b[at+16:], ^sum(b[addrsOf(b):at], []byte{0, 6, byte(n >> 8), byte(n)}, b[at:]))
}

// partial adds a packet whose checksum the device completes.
func (m *maker) partial(f form, o offload) {
	b := f.bytes()
	at := m.l4At()
	o.partial, o.csumStart = true, uint16(at)
	o.csumOff = uint16(m.checksumAt() - at)
	n := len(b) - at
	binary.BigEndian.PutUint16(b[m.checksumAt():], sum(b[addrsOf(b):at], []byte{0, byte(m.Proto), byte(n >> 8), byte(n)}))
	m.count(f, m.frame(b)).offload = o
}

// odd returns a length other than n.
func (m *maker) odd(n int) uint16 {
	choices := []int{0, 1, 2, 7, 8, 19, 20, 27, 28, 39, 40, 255, n - 1, n + 1, n + 100, 65535, n - 4}
	return uint16(max(choices[m.r.IntN(len(choices))], 0))
}

// otherAddrs6 are those of otherAddr for IPv6.
var otherAddrs6 = func() (all [10]netip.Addr) {
	for i, s := range [...]string{"fd00:17::2", "fd00:17::3", "fd00:17::77", "fd00:77::1", "fd00:77::55", "::1",
		"::", "2001:db8:19::1", "fd00:17::1", "ff02::1"} {
		all[i] = netip.MustParseAddr(s)
	}
	return all
}()

// otherAddr returns an address other than the sender's.
func (m *maker) otherAddr() netip.Addr {
	all := [][4]byte{{172, 17, 0, 2}, {172, 17, 0, 3}, {172, 17, 0, 77}, {10, 77, 0, 1}, {10, 77, 0, 55}, {127, 0, 0, 1},
		{0, 0, 0, 0}, {198, 19, 99, 1}, {172, 17, 0, 1}, {224, 0, 0, 1}}
	n := m.r.IntN(len(all))
	if m.isIPv6() {
		return otherAddrs6[n]
	}
	return netip.AddrFrom4(all[n])
}
