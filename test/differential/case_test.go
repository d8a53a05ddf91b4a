package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/scon-project/scon/test/bed/lab"
)

// Case is a ruleset, connections, and steps of packets and changes.
type Case struct {
	Seed uint64
	// Liberal disables conntrack's check of TCP windows.
	Liberal bool
	// BridgeAlone disables bridge-nf-call-iptables: neither Netfilter's IP hooks
	// nor conntrack see packets within the bridge.
	BridgeAlone bool
	Rules       ruleset
	Function    *function // nil for none
	Conns       []conn
	Steps       []step
	// Part means that steps were left out: a change may lack what it builds on, and is
	// allowed to fail.
	Part bool
}

// step is a sequence of packets whose fates are compared, with a change before
// or during it.
type step struct {
	Change *change       // before the packets, or while they are sent
	Items  []item        //
	Pause  time.Duration // before the packets, in the world with SCON
	// Settle is set if a packet may invalidate decisions: the daemon gets time to
	// process that.
	Settle bool
}

// item is a packet, or a few that belong together.
type item struct {
	Kind string
	Conn int
	Dir  int
	ID   uint16 // IP id, unique in the case: a multiple of segmentIDs
	Seed uint64 // seed of its details
}

// segmentIDs is the number of IP ids of an item: each segment of a GSO packet
// takes the next one.
const segmentIDs = 16

func (i item) String() string {
	return fmt.Sprintf("%04x %s, connection %d, %s", i.ID, i.Kind, i.Conn, []string{"original", "reply"}[i.Dir])
}

func (c *Case) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "-seed %d%s%s\n%v%v", c.Seed, map[bool]string{true: ", conntrack is liberal"}[c.Liberal],
		map[bool]string{true: ", the bridge is alone"}[c.BridgeAlone], c.Rules, c.Function)
	for i, conn := range c.Conns {
		fmt.Fprintf(&b, "connection %d: %v\n", i, conn)
	}
	for i, s := range c.Steps {
		fmt.Fprintf(&b, "step %d, after %v%s\n", i, s.Pause, map[bool]string{true: ", then settle"}[s.Settle])
		if s.Change != nil {
			fmt.Fprintf(&b, "  %v\n", s.Change)
		}
		for _, it := range s.Items {
			fmt.Fprintf(&b, "  %v\n", it)
		}
	}
	return b.String()
}

// jiffies is the time until a learned decision takes effect, composing about the
// time that the daemon needs to compose a connection.
const (
	jiffies   = 9 * time.Millisecond
	composing = 8 * time.Millisecond
)

// silentCases is of how many cases one has a change that the kernel does not announce: each
// takes seconds.
const silentCases = 16

// generator generates a case.
type generator struct {
	*Case
	makeup
	about topic
	r     *rand.Rand
	reset map[int]bool // connections that a RST has reset
	// untracked means that rules keep all packets from conntrack: nothing is translated.
	untracked bool
	// counting is set once there are rules that count packets.
	counting bool
	// tracking is set once there are rules that match conntrack's state of a packet.
	tracking bool
}

func generate(seed uint64, among []settings, about topic) *Case {
	v := variantOf(seed, among)
	g := generator{Case: &Case{Seed: seed}, makeup: among[v].makeup, about: about, r: rand.New(rand.NewPCG(seed, 0)), reset: make(map[int]bool)}
	g.Liberal = g.r.IntN(2) == 0
	if about.short { // the same for all cases of a pair of worlds
		g.Liberal = v%2 == 0
	}
	g.BridgeAlone = g.r.IntN(2) == 0
	g.untracked = g.r.IntN(8) == 0
	g.conns()
	g.rules()
	if about.nested {
		g.nest()
	}
	if about.function {
		g.Function = g.function()
	}
	if about.short {
		g.lives()
		return g.Case
	}
	g.open()
	g.mix(jiffies)
	if about.stream {
		g.stream()
	}
	for range g.r.IntN(3) {
		g.happens(g.change())
		g.admit()
		g.mix(jiffies)
	}
	if about.holds {
		g.held()
	}
	if g.r.IntN(silentCases) == 0 {
		g.silent()
	}
	g.close()
	return g.Case
}

// conns generates connections with distinct ports, so that NAT never has to
// choose another one.
func (g *generator) conns() {
	for i := range 2 + g.r.IntN(3) {
		port := func(base int) uint16 { return uint16(base + 100*i + g.r.IntN(100)) }
		remote := netip.AddrFrom4([4]byte{198, 18, byte(g.r.IntN(256)), byte(1 + g.r.IntN(254))})
		n := c1 + g.r.IntN(2)
		device := lab.DeviceAddr
		if g.ipv6 {
			b := netip.MustParseAddr("2001:db8:18::").As16()
			copy(b[14:], remote.AsSlice()[2:])
			remote = netip.AddrFrom16(b)
			device = lab.DeviceAddr6
		}
		c := conn{Kind: "out", Proto: layers.IPProtocolUDP, From: n, To: edge}
		if g.r.IntN(2) == 0 {
			c.Proto = layers.IPProtocolTCP
		}
		inside, outside := netip.AddrPortFrom(g.containerAddr(n), port(40000)), netip.AddrPortFrom(remote, port(5000))
		c.Src, c.Dst = inside, outside
		kind := g.r.IntN(10)
		if g.port && (kind == 1 || kind == 2) {
			kind += 7 // out: what device translates there does not go express
		}
		if g.untracked && kind <= 2 {
			kind = 3
		} else if g.untracked && kind == 7 {
			kind = 8
		}
		switch kind {
		case 0, 1, 2:
			c.Kind, c.From, c.To = "published", edge, n
			c.Src, c.Dst = netip.AddrPortFrom(remote, port(30000)), netip.AddrPortFrom(device, port(8000))
		case 3, 4:
			c.Kind, c.From, c.To = "routed", edge, n
			c.Src, c.Dst = netip.AddrPortFrom(remote, port(30000)), netip.AddrPortFrom(g.containerAddr(n), port(9000))
		case 5, 6:
			c.Kind, c.To = "lan", c1+c2-n
			c.Dst = netip.AddrPortFrom(g.containerAddr(c.To), port(9000))
		case 7:
			c.Kind, c.To = "hairpin", c1+c2-n
			c.Dst = netip.AddrPortFrom(device, port(8000))
		}
		g.Conns = append(g.Conns, c)
	}
}

// containerAddr returns a container's address in the case's family.
func (g *generator) containerAddr(n int) netip.Addr {
	if g.ipv6 {
		return lab.ContainerAddr6(n)
	}
	return lab.ContainerAddr(n)
}

// item adds an item to a step, unless its connection has been reset.
func (g *generator) item(s *step, kind string, conn, dir int) {
	if g.reset[conn] {
		return
	}
	g.reset[conn] = kind == loneRST && g.Conns[conn].Proto == layers.IPProtocolTCP
	id := 1
	for _, s := range append(g.Steps, *s) {
		id += len(s.Items)
	}
	s.Items = append(s.Items, item{Kind: kind, Conn: conn, Dir: dir, ID: uint16(id * segmentIDs), Seed: g.r.Uint64()})
}

// each adds a step with one packet of each connection, of one kind for TCP and
// another for UDP.
func (g *generator) each(pause time.Duration, tcp, udp string, dir int) {
	s := step{Pause: pause}
	for i, c := range g.Conns {
		if kind := map[bool]string{true: tcp, false: udp}[c.Proto == layers.IPProtocolTCP]; kind != "" {
			g.item(&s, kind, i, dir)
		}
	}
	g.Steps = append(g.Steps, s)
}

// open begins all connections that the rules allow.
func (g *generator) open() {
	g.each(0, "SYN", "data", orig)
	g.each(0, "SYN ACK", "data", reply)
	g.admit()
}

// admit sends enough packets for connections to become express, and some
// express ones.
func (g *generator) admit() {
	g.rounds(0, 3)
	g.rounds(composing, 1)
	g.rounds(jiffies, 5)
}

// rounds adds a step with n packets of each connection in both directions.
func (g *generator) rounds(pause time.Duration, n int) {
	s := step{Pause: pause}
	for range n {
		for i := range g.Conns {
			g.item(&s, "data", i, orig)
			g.item(&s, "data", i, reply)
		}
	}
	g.Steps = append(g.Steps, s)
}

// happens adds a change. If the change allows it, packets follow before the daemon
// has processed it.
func (g *generator) happens(c *change) {
	s := step{Change: c}
	if c.AtOnce {
		for i := range g.Conns {
			for dir := range 2 {
				g.item(&s, "data", i, dir)
				g.item(&s, "data", i, dir)
			}
		}
	}
	g.Steps = append(g.Steps, s)
}

// mix adds packets of all kinds.
func (g *generator) mix(pause time.Duration) {
	s := step{Pause: pause}
	for range 20 + g.r.IntN(40) {
		list, kind := g.pick()
		if kind.name == otherWindow && !g.Liberal || list == ofUnsound && (g.counting || g.tracking) {
			continue
		}
		g.item(&s, kind.name, g.r.IntN(len(g.Conns)), g.r.IntN(2))
		if s.Settle = list == ofUnsettling; s.Settle {
			g.Steps = append(g.Steps, s)
			s = step{}
		}
	}
	g.Steps = append(g.Steps, s)
}

// close ends connections, and sends packets of them afterwards.
func (g *generator) close() {
	if g.r.IntN(2) == 0 {
		return
	}
	g.each(0, "FIN", "data", orig)
	g.each(0, "data", "data", reply)
	g.each(0, "FIN", "data", reply)
	g.each(0, "data", "data", orig)
	if g.r.IntN(2) == 0 {
		g.open()
		g.mix(jiffies)
	}
}

// allKinds are the lists of kinds.
var allKinds = [][]kind{append(kinds, ofPlace[0]), ofUnsound: unsound, ofUnsettling: append(unsettling, ofPlace[1])}

const (
	ofUnsound    = 1
	ofUnsettling = 2
)

// pick chooses a kind and returns the list that it is in.
func (g *generator) pick() (list int, k kind) {
	if g.about.kinds != nil && g.r.IntN(4) == 0 {
		k = g.about.kinds[g.r.IntN(len(g.about.kinds))]
		return map[bool]int{true: ofUnsettling}[k.name == fromAnotherPort], k
	}
	all := slices.Concat(allKinds...)
	sum := 0
	for _, k := range all {
		sum += k.weight
	}
	n := g.r.IntN(sum)
	at := slices.IndexFunc(all, func(k kind) bool { n -= k.weight; return n < 0 })
	k = all[at]
	for ; at >= len(allKinds[list]); list++ {
		at -= len(allKinds[list])
	}
	return list, k
}

// kindOf finds a kind by its name.
func kindOf(name string) kind {
	for _, k := range slices.Concat(append(allKinds, opening, ofShort)...) {
		if k.name == name {
			return k
		}
	}
	panic("no kind of packets " + name)
}
