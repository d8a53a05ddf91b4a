package rules

// TouchesTunnel finds a rule that judges single packets and that the outer
// packets of a tunnel may reach: UDP over IPv4 to a port, sent or received by
// this host. Nothing else is known of them.
func (r Ruleset) TouchesTunnel(port uint16) (found Rule, touched bool) {
	conn := tunnelConn(port)
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
	m := machine{hit: hit, form: &f, budget: maxRules}
	m.run(b.chain, 0)
}
