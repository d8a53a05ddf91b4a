package rules

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// TouchesTunnel finds a rule that judges single packets and that the outer
// packets of a tunnel may reach: UDP over IPv4 to a port, sent or received by
// this host. Nothing else is known of them.
func (r Ruleset) TouchesTunnel(port uint16) (found Rule, touched bool) {
	to := netip.AddrPortFrom(netip.Addr{}, port)
	conn := Conn{Conn: conntrack.Conn{
		Orig:  conntrack.Tuple{Proto: unix.IPPROTO_UDP, Dst: to},
		Reply: conntrack.Tuple{Proto: unix.IPPROTO_UDP, Src: to},
	}}
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
	f := b.form(c)
	f.family, f.unreplied = ipv4, true
	f.fill(translated)
	m := machine{hit: hit, form: &f, budget: maxRules}
	m.run(b.chain, 0)
}
