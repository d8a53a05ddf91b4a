package rules

import (
	"slices"
	"strings"
)

// hook is where a base chain sees packets, by netfilter's names.
type hook string

const (
	prerouting  hook = "prerouting"
	input       hook = "input"
	forward     hook = "forward"
	output      hook = "output"
	postrouting hook = "postrouting"
	ingress     hook = "ingress" // of devices
	egress      hook = "egress"
	// The hooks of bridges, before or after IP has seen the packet. The
	// forward hook sees what stays within the bridge.
	bridgePrerouting  hook = "bridge prerouting"
	bridgeInput       hook = "bridge input"
	bridgeForward     hook = "bridge forward"
	bridgeOutput      hook = "bridge output"
	bridgePostrouting hook = "bridge postrouting"
)

// Priorities of the kernel's own functions at the hooks of IP.
const (
	priorityConntrack = -200
	priorityDNAT      = -100
	prioritySNAT      = 100
)

// base is a chain that the kernel runs at a hook.
type base struct {
	chain    *chain
	hook     hook
	families []family // of the packets that come to it
	priority int32
	devices  []string // of ingress and egress, "eth*" for all with that prefix
	nat      bool     // of type nat: it sees the first packet of a connection only
	drops    bool     // its policy: what reaches its end is dropped
	uses     markUse  // of the rules that its packets may reach
	at       int64    // place, while marks matter
}

// starting reports whether the chain sees no packets of an express connection,
// but may see the first packets that a container sends.
func (b *base) starting() bool { return b.nat || b.hook == input || b.hook == output }

// outer reports whether the chain sees the outer packets of a tunnel.
func (b *base) outer() bool {
	return !b.nat && slices.Contains([]hook{prerouting, input, output, postrouting, ingress, egress, bridgeOutput, bridgePostrouting}, b.hook)
}

// stages returns the stages of address translation that packets may be in.
func (b *base) stages() []stage {
	switch b.hook {
	case ingress, bridgePrerouting, bridgeInput, bridgeForward:
		return []stage{arrived, forwarded} // the latter with br_netfilter
	case prerouting:
		return around(b.priority, priorityDNAT, arrived, forwarded)
	case forward:
		return []stage{forwarded}
	case postrouting, input:
		return around(b.priority, prioritySNAT, forwarded, translated)
	default:
		return []stage{forwarded, translated}
	}
}

// around returns the stages before and after a priority.
func around(priority, of int32, before, after stage) []stage {
	switch {
	case priority < of:
		return []stage{before}
	case priority > of:
		return []stage{after}
	default:
		return []stage{before, after}
	}
}

// unknownDevice stands for a device that is not known.
var unknownDevice = []*Device{nil}

// devicePairs calls fn for each pair of devices with which packets of one
// direction may pass the hook. A device is nil where it is not known or there
// is none. Without a call the packets do not pass the chain.
func (b *base) devicePairs(c *Conn, outward bool, fn func(iif, oif *Device)) {
	if outside := c.outside(); outside != nil {
		b.pairsBetween(c, &c.Peer, outside, outward, fn)
	}
	for i := range c.Bridged {
		b.pairsBetween(c, &c.Bridged[i], pointers(c.Inside), outward, fn)
	}
}

// pairsBetween is devicePairs for packets that enter and leave by a port of a bridge on the
// other side, if there is one, and by devices that IP sees there.
func (b *base) pairsBetween(c *Conn, other *Device, outside []*Device, outward bool, fn func(iif, oif *Device)) {
	inside := pointers(c.Inside)
	port, peer := pointer(&c.Port), pointer(other)
	between := other.Name != "" // two containers, or all is unknown
	from, to, enters, leaves := outside, inside, peer, port
	if outward {
		from, to, enters, leaves = inside, outside, port, peer
	}
	switch b.hook {
	case prerouting, input:
		each(from, func(d *Device) { fn(d, nil) })
	case output:
		fn(nil, nil)
	case forward:
		each(from, func(iif *Device) { each(to, func(oif *Device) { fn(iif, oif) }) })
	case postrouting: // newer kernels also let rules match iif
		each(to, func(d *Device) { fn(nil, d) })
	case ingress:
		each(b.hooked(outward || between, enters, from), func(d *Device) { fn(d, nil) })
	case egress:
		each(b.hooked(!outward || between, leaves, to), func(d *Device) { fn(nil, d) })
	case bridgePrerouting, bridgeInput:
		if outward || between {
			fn(enters[0], nil)
		}
	case bridgeForward:
		if between || c.Port.Name == "" {
			fn(enters[0], leaves[0])
		}
	default:
		if !outward || between {
			fn(nil, leaves[0])
		}
		if b.bare(outward, outside) {
			fn(nil, nil) // a port of the uplink
		}
	}
}

// bare reports whether express packets of one direction pass the hook: that of a bridge by
// which they leave. At a device's egress hook a packet that a program has redirected from an
// ingress is left out (nf_skip_egress in the kernel's net/core/dev.c).
func (b *base) bare(outward bool, outside []*Device) bool {
	return outward && (b.hook == bridgeOutput || b.hook == bridgePostrouting) &&
		slices.ContainsFunc(outside, func(d *Device) bool { return d == nil || d.Bridge })
}

// pointer is a device, if it is known.
func pointer(d *Device) []*Device {
	if d.Name == "" {
		return unknownDevice
	}
	return []*Device{d}
}

// hooked returns those of devices, and of port if passed, at whose hook the
// chain is registered.
func (b *base) hooked(passesPort bool, port, devices []*Device) (found []*Device) {
	if passesPort {
		devices = slices.Concat(port, devices)
	}
	for _, d := range devices {
		if d == nil || slices.ContainsFunc(b.devices, d.is) {
			found = append(found, d)
		}
	}
	return found
}

// is reports whether a device has a name, or one that matches "name*".
func (d *Device) is(name string) bool {
	if prefix, ok := strings.CutSuffix(name, "*"); ok {
		return strings.HasPrefix(d.Name, prefix)
	}
	return d.Name == name
}

func each(devices []*Device, fn func(*Device)) {
	for _, d := range devices {
		fn(d)
	}
}

// outside are the devices by which IP may see the packets of a connection on the other side,
// nil if it can only be bridged there.
func (c *Conn) outside() []*Device {
	if len(c.Outside) == 0 && len(c.Bridged) > 0 {
		return nil
	}
	return pointers(c.Outside)
}

func pointers(devices []Device) []*Device {
	if len(devices) == 0 {
		return unknownDevice
	}
	all := make([]*Device, len(devices))
	for i := range devices {
		all[i] = &devices[i]
	}
	return all
}

// form returns a form with what all packets have in common at the hook.
func (b *base) form(c *Conn) form {
	f := form{conn: c}
	switch b.hook {
	case prerouting, output:
		f.layer3, f.tracked = true, b.priority > priorityConntrack && !c.Untracked
	case input, forward, postrouting:
		f.layer3, f.tracked = true, !c.Untracked
	case bridgePrerouting, bridgeInput, bridgeForward, bridgeOutput, bridgePostrouting:
		f.bridged = true
	}
	return f
}

// forms calls fn for each form that packets of a connection may have at the
// hook. fn's form is valid until it returns.
func (b *base) forms(c *Conn, unreplied bool, fn func(*form)) {
	f := b.form(c)
	for _, f.family = range b.familiesOf(c) {
		for _, reply := range []bool{false, true} {
			f.reply, f.outward = reply, reply == c.Replies
			f.bare = b.bare(f.outward, c.outside())
			for _, s := range b.stages() {
				f.fill(s)
				b.devicePairs(c, f.outward, func(iif, oif *Device) {
					f.iif, f.oif = iif, oif
					f.unreplied = false
					fn(&f)
					if unreplied && !reply {
						f.unreplied = true
						fn(&f)
					}
				})
			}
		}
	}
}

// familiesOf returns the families of a connection's packets that pass the chain.
func (b *base) familiesOf(c *Conn) (found []family) {
	for _, f := range c.families() {
		if slices.Contains(b.families, f) {
			found = append(found, f)
		}
	}
	return found
}

// firstForms calls fn for each form that packets of no connection, sent by a
// container, may have at the hook.
func (b *base) firstForms(c *Conn, state uint16, fn func(*form)) {
	f := b.form(c)
	f.first, f.firstState, f.outward = true, state, true
	for _, f.family = range b.familiesOf(c) {
		for _, s := range b.stages() {
			f.fill(s)
			b.devicePairs(c, true, func(iif, oif *Device) {
				f.iif, f.oif = iif, oif
				fn(&f)
			})
		}
	}
}

// follow follows a connection's packets through the chain and calls hit for
// each rule reached that judges single packets, until hit returns false.
func (b *base) follow(c *Conn, unreplied bool, hit func(r *rule, why string) bool) {
	b.followWith(&machine{hit: hit}, c, unreplied)
}

func (b *base) followWith(m *machine, c *Conn, unreplied bool) {
	b.forms(c, unreplied, func(f *form) {
		if !m.stopped {
			m.form, m.budget = f, maxRules
			m.run(b.chain, 0)
		}
	})
}

// findHits adds to hits all rules that judge single packets, that are silent or that set marks, in
// the chain or in chains that it leads to, and those chains to chains. It reports
// whether there are any.
func (b *base) findHits(hits map[*rule]bool, chains map[*chain]bool) (found bool) {
	rules, reached := make(map[*rule]bool), make(map[*chain]bool)
	b.chain.reach(rules, reached)
	for c := range reached {
		chains[c] = true
	}
	m := machine{hit: func(r *rule, _ string) bool {
		hits[r], found = true, true
		return true
	}}
	b.uses = 0
	for r := range rules {
		uses := r.markUse()
		b.uses |= uses
		if r.isSilent() || uses != 0 {
			hits[r], found = true, true
		}
	}
	for _, untracked := range []bool{false, true} {
		// In one direction: then packets may be new as well as established.
		b.forms(&Conn{Untracked: untracked, Flags: FIN | SYN}, true, func(f *form) {
			m.form = f
			for r := range rules {
				m.apply(r)
			}
		})
	}
	return found
}
