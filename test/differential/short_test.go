package differential

import (
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// Short connections: each lives several times in a case, on the same ports, from its SYN to
// its FIN or RST, and hardly longer than it takes to go express.

var aboutShort = topic{short: true, features: ofStates, leastOfAll: 0.05}

// Connections begin, go express and end again and again, in every way that TCP allows,
// under rules that treat their first packet otherwise than the later ones, and that change
// meanwhile.
func TestDifferentialShort(t *testing.T) { compareFates(t, variants, aboutShort, ofTopic()) }

// ofStates are rules that distinguish the packets that begin a connection from later ones.
var ofStates = []feature{
	{"forward_filter", "THERE ct state new drop", "THERE -m conntrack --ctstate NEW -j DROP"},
	{"forward_filter", "BACK ct state new drop", "BACK -m conntrack --ctstate NEW -j DROP"},
	{"forward_filter", "THERE ct state established drop", "THERE -m conntrack --ctstate ESTABLISHED -j DROP"},
	{"forward_filter", "BACK ct state established drop", "BACK -m conntrack --ctstate ESTABLISHED -j DROP"},
	{"forward_filter", "ct state established accept", "-m conntrack --ctstate ESTABLISHED -j ACCEPT"},
	{"forward_filter", "meta l4proto tcp THERE ct state new reject with tcp reset", "THERE -m conntrack --ctstate NEW -j REJECT"},
	{"forward_filter", "tcp flags & (fin|syn|rst|ack) != syn ct state new drop", "-p tcp ! --syn -m conntrack --ctstate NEW -j DROP"},
	{"forward_filter", "ct state invalid drop", "-m conntrack --ctstate INVALID -j DROP"},
	{"forward_mangle", "THERE ct state new ip dscp set 12", "THERE -m conntrack --ctstate NEW -j DSCP --set-dscp 12"},
	{"forward_mangle", "ct state established ip dscp set 20", "-m conntrack --ctstate ESTABLISHED -j DSCP --set-dscp 20"},
	{"pre_mangle", "meta l4proto tcp ct state new meta mark set 5", "-p tcp -m conntrack --ctstate NEW -j MARK --set-mark 5"}, // not the tunnel's
	{"pre_mangle", "THERE ct state established meta mark set 7", "THERE -m conntrack --ctstate ESTABLISHED -j MARK --set-mark 7"},
	{"post_mangle", "THERE ct state established meta priority set 1:2", "THERE -m conntrack --ctstate ESTABLISHED -j CLASSIFY --set-class 1:2"},
}

// Kinds of the beginnings and ends of short connections.
const (
	synWithData      = "SYN with data"
	bothOpen         = "SYN ACK of both"
	reordered        = "reordered"
	again            = "once more"
	oneIn, rarely    = 4, 12 // connections that do what few do, and what fewer do
	livesMin, livesN = 2, 3
)

// ofShort are packets of short connections.
var ofShort = []kind{
	{synWithData, 0, func(m *maker) {
		f := m.data(1 + m.r.IntN(64))
		f.tcp.SYN, f.tcp.ACK, f.tcp.Ack = true, false, 0
		m.send(f)
	}},
	{bothOpen, 0, func(m *maker) { // after the SYN of both
		f := m.data(0)
		f.tcp.SYN = true
		f.tcp.Seq--
		m.frame(f.bytes())
	}},
	{reordered, 0, func(m *maker) {
		first := m.data(1 + m.r.IntN(64))
		second := m.form(m.dir, m.id+1, m.payload(1+m.r.IntN(64)))
		second.tcp.Seq += uint32(len(first.payload))
		m.send(second)
		m.send(first)
	}},
}

// lives has all connections begin and end several times.
func (g *generator) lives() {
	for range livesMin + g.r.IntN(livesN) {
		g.shortOpen()
		g.shortTalk()
		g.shortEnd()
	}
}

// of adds a step with a packet of each of some directions of those connections that choose
// draws a kind for, "" for none. Those of UDP send data.
func (g *generator) of(choose func() string, dirs ...int) {
	var s step
	for i, c := range g.Conns {
		kind := choose()
		if c.Proto != layers.IPProtocolTCP && kind != "" {
			kind = "data"
		}
		for _, dir := range dirs {
			if kind != "" {
				g.item(&s, kind, i, dir)
			}
		}
	}
	if s.Items != nil {
		g.Steps = append(g.Steps, s)
	}
}

// always draws a kind for all connections, some for one in n.
func always(kind string) func() string { return func() string { return kind } }

func (g *generator) some(kind string, n int) func() string {
	return func() string {
		if g.r.IntN(n) > 0 {
			return ""
		}
		return kind
	}
}

// disturb has few connections reset by either side, and some packets sent again.
func (g *generator) disturb() {
	for dir := range 2 {
		g.of(g.some(again, oneIn), dir)
		g.of(g.some(loneRST, rarely), dir)
	}
}

// shortOpen begins the connections.
func (g *generator) shortOpen() {
	kind := "SYN"
	if g.r.IntN(oneIn) == 0 {
		kind = synWithData
	}
	g.of(always(kind), orig)
	g.disturb()
	if g.Liberal && g.r.IntN(rarely) == 0 {
		g.of(always("SYN"), reply)
		g.of(always(bothOpen), orig)
		g.of(always(bothOpen), reply)
	} else {
		g.of(always("SYN ACK"), reply)
	}
	g.disturb()
	g.of(always("empty"), orig)
}

// shortTalk has them exchange a few packets, and what they depend on change.
func (g *generator) shortTalk() {
	g.rounds(0, 1+g.r.IntN(2))
	if g.r.IntN(oneIn) == 0 {
		g.happens(g.change())
	}
	g.rounds(composing, 1)
	g.rounds(jiffies, 1+g.r.IntN(3))
	for dir := range 2 {
		g.of(g.some(reordered, oneIn), dir)
	}
	g.disturb()
	if g.r.IntN(oneIn) == 0 {
		g.happens(g.change())
		g.rounds(jiffies, 1)
	}
}

// shortEnd ends them, or leaves them so that the next SYN comes in their midst.
func (g *generator) shortEnd() {
	first, last := orig, reply
	if g.r.IntN(2) == 0 {
		first, last = last, first
	}
	switch g.r.IntN(6) {
	case 0:
		if g.Liberal { // else what acknowledges a SYN ACK that conntrack ignores is outside of the window
			return
		}
		fallthrough
	case 1: // both at a time
		g.of(g.some(loneRST, 2), first)
		g.of(always("FIN"), first, last)
	default:
		g.of(always("FIN"), first)
		g.disturb()
		for range g.r.IntN(3) { // half closed
			g.of(always("data"), last)
			g.of(always("empty"), first)
		}
		g.of(always("FIN"), last)
	}
	g.disturb()
	g.of(always("empty"), first)
	g.of(g.some("empty", 2), last)
}
