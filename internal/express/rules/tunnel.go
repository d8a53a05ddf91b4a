package rules

import (
	"net/netip"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// Tunnel is what is known of a tunnel's outer packets, which this host sends and
// receives over IPv4.
type Tunnel struct {
	Proto uint8  // UDP or IPIP
	Port  uint16 // destination of UDP
}

// TouchesTunnel finds a rule that judges single packets and that the outer
// packets of a tunnel may reach.
func (r Ruleset) TouchesTunnel(t Tunnel) (found Rule, touched bool) {
	conn := t.conn()
	for _, b := range r.outer {
		b.followOuter(&conn, func(hit *rule, why string) bool {
			found, touched = hit.describe(why), true
			return false
		})
		if touched {
			break
		}
	}
	return found, touched
}

// followOuter is follow for the outer packets of a tunnel, in one direction.
func (b *base) followOuter(c *Conn, hit func(r *rule, why string) bool) {
	f := b.outerForm(c)
	k := marks{young: true} // theirs is not known
	m := machine{hit: hit, form: &f, budget: maxRules, marks: &k}
	if m.run(b.chain, 0)&passed != 0 {
		m.settle()
	}
	if k.found != nil {
		m.touch(k.found, connMarkName)
	}
}

// conn is the connection of a tunnel's outer packets.
func (t Tunnel) conn() Conn {
	to := netip.AddrPortFrom(netip.Addr{}, t.Port)
	return Conn{Conn: conntrack.Conn{
		Orig:  conntrack.Tuple{Proto: t.Proto, Dst: to},
		Reply: conntrack.Tuple{Proto: t.Proto, Src: to},
	}}
}
