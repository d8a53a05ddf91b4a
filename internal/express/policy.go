package express

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// policy is which connections the rules leave to the express way. While there
// are rules that have not been read, the programs are inert.
type policy struct {
	mu    sync.Mutex // also held over each heartbeat, and over taking it back
	heard uint64     // changes of the rules
	read  uint64     // those of them that are in what was read

	rules rules.Ruleset
	err   error // why they could not be read
	// kept are connections that a rule kept regular, by their original tuple:
	// the latest ones, for who asks.
	kept map[conntrack.Tuple]keptConn
	// The devices that IP sees packets come and go by.
	inside  map[int][]rules.Device // for each bridge
	outside []rules.Device
	// controls say what packets meet at a bridge that express ones skip.
	controls map[int]string
	xdp      map[int]bool // devices with XDP programs
	programs map[place]programs
	// contested says of devices why they are left to others' programs.
	contested map[int]string
}

// keptConn is what a connection was looked up with.
type keptConn struct {
	port      int
	peer      int  // port of the container at the other end, 0 if there is none
	initiator bool // the container opened it
	untracked bool // conntrack does not see it
}

// keptAs is what a Conentry is looked up with.
func keptAs(e *contable.Conentry) keptConn {
	return keptConn{port: e.Port, peer: e.Peer, initiator: e.Initiator(), untracked: e.Untracked}
}

// mostKept bounds policy.kept.
const mostKept = 4096

func newPolicy() policy {
	// What is there at the start has not been read.
	return policy{
		heard: 1, kept: make(map[conntrack.Tuple]keptConn),
		programs: make(map[place]programs), contested: make(map[int]string),
	}
}

// stale hears of each change that makes decisions stale, in the goroutine that
// heard of it first. If it may be one of the rules or of somebody's tc filters,
// nothing goes express until the loop has looked at them: they may be about
// single packets, or be skipped.
func (d *Daemon) stale(e changes.Event) {
	d.counts.changes[e.Kind].Add(1)
	switch e.Kind {
	case changes.Ruleset, changes.Filter, changes.Overrun:
	default:
		d.newGeneration(e.Reason)
		return
	}
	d.policy.mu.Lock()
	defer d.policy.mu.Unlock()
	d.policy.heard++
	d.makeInert()
	d.newGeneration(e.Reason)
}

// beat shows the programs that the daemon lives, unless they are to be inert.
func (d *Daemon) beat() error {
	d.policy.mu.Lock()
	defer d.policy.mu.Unlock()
	if d.paused || d.policy.read != d.policy.heard {
		return nil
	}
	d.counts.beats++
	return d.dp.Beat()
}

// readRules reads the rules if they have changed since, retires what must meet
// each of them, and lets the programs go on.
func (d *Daemon) readRules(now time.Time) error {
	p := &d.policy
	p.mu.Lock()
	heard, known := p.heard, p.heard == p.read
	p.mu.Unlock()
	if known {
		return nil
	}
	ruleset, err := rules.Read(rules.Options{ExactCounters: d.opts.Config.ExactCounters})
	if err != nil {
		if p.err == nil {
			d.log.Error("reading the rules: every packet goes regular", "error", err)
		}
		p.err = err
		return nil
	}
	p.rules, p.err = ruleset, nil
	d.retireDiscards(nil, now)
	d.retireTouched(now)
	d.setTunnels()
	p.mu.Lock()
	p.read = heard
	p.mu.Unlock()
	if d.agent != nil {
		d.agent.RulesChanged()
	}
	return d.beat()
}

// checkRules looks for changes of the rules that nothing announces, and reads
// the rules again that could not be read.
func (d *Daemon) checkRules(now time.Time) error {
	stale, err := d.policy.rules.Stale()
	if stale || err != nil {
		d.stale(changes.Event{Kind: changes.Ruleset, Reason: "iptables-legacy changed without its lock"})
	}
	return d.readRules(now)
}

// retireTouched retires the Conentries that a rule may touch that judges single
// packets.
func (d *Daemon) retireTouched(now time.Time) {
	if len(d.policy.rules.PerPacket()) == 0 {
		return
	}
	d.table.All(func(e *contable.Conentry) {
		k := keptAs(e)
		if rule, touched := d.touches(k, e.Conn); touched {
			d.keepRegular(k, e.Conn, rule)
			d.refuse(d.devices.ports[e.Port], refusedRule)
			d.table.Retire(e, now)
		}
	})
}

// touches finds a rule that judges single packets and that a connection of a
// container may meet.
func (d *Daemon) touches(k keptConn, conn conntrack.Conn) (rules.Rule, bool) {
	p, peer := d.devices.ports[k.port], d.devices.ports[k.peer]
	if p == nil || k.peer != 0 && peer == nil {
		return rules.Rule{}, false
	}
	c := rules.Conn{
		Conn:    conn,
		Port:    rules.Device{Name: p.Name, Index: p.Index},
		Inside:  d.policy.insideOf(p),
		Outside: d.policy.outside,
		Replies: !k.initiator,

		Untracked: k.untracked,
	}
	if peer != nil {
		c.Peer = rules.Device{Name: peer.Name, Index: peer.Index}
		c.Outside = d.policy.insideOf(peer)
	}
	return d.policy.rules.Touches(c)
}

// insideOf are the devices by which IP may see packets of the container behind a
// port.
func (p *policy) insideOf(port *port) []rules.Device {
	index, _ := port.Inside()
	return p.inside[index]
}

// keepRegular remembers a connection that a rule keeps regular.
func (d *Daemon) keepRegular(k keptConn, conn conntrack.Conn, rule rules.Rule) {
	d.devices.ports[k.port].rule = rule
	if len(d.policy.kept) >= mostKept {
		clear(d.policy.kept)
	}
	d.policy.kept[conn.Orig] = k
}

// keptBy finds the rule that keeps a connection regular now.
func (d *Daemon) keptBy(conn conntrack.Conn) (rule rules.Rule, kept bool) {
	k, ok := d.policy.kept[conn.Orig]
	if !ok {
		return rule, false
	}
	return d.touches(k, conn)
}

// lookAtDevices takes up which devices the rules may name for packets of
// containers, before any of the uplinks is hooked that have come, and what is
// on the way between these and the containers.
func (d *Daemon) lookAtDevices(topology discover.Topology) {
	above := layersOf(topology.Links)
	inside := make(map[int][]rules.Device)
	for _, b := range topology.Bridges {
		inside[b.Index] = above.of(rules.Device{Name: b.Name, Index: b.Index})
	}
	skipped := maps.Clone(inside) // what express packets would skip
	for _, port := range topology.Ports {
		if port.Routed() {
			inside[port.Index] = above.of(rules.Device{Name: port.Name, Index: port.Index})
			skipped[port.Index] = slices.DeleteFunc(slices.Clone(inside[port.Index]), func(dev rules.Device) bool { return dev.Index == port.Index })
		}
	}
	var outside []rules.Device
	for _, u := range topology.Uplinks {
		outside = append(outside, above.of(rules.Device{Name: u.Name, Index: u.Index})...)
	}
	p := &d.policy
	p.controls, p.xdp = controlsOf(skipped, topology.Qdiscs, d.dp.Programs()), make(map[int]bool)
	for _, l := range topology.Links {
		p.xdp[l.Attrs().Index] = hasXDP(l)
	}
	for port, devices := range skipped {
		for _, dev := range devices {
			if p.xdp[dev.Index] {
				p.controls[port] = fmt.Sprintf("packets of its bridge must meet what %s has: an XDP program", dev.Name)
			}
		}
	}
	if slices.Equal(outside, p.outside) && maps.EqualFunc(inside, p.inside, slices.Equal[[]rules.Device]) {
		return
	}
	p.inside, p.outside = inside, outside
	d.retireTouched(time.Now())
}

// controlsOf finds traffic control at bridges, and at what IP sees in place of
// these or of a container's port: a qdisc, somebody's filters or programs.
func controlsOf(inside map[int][]rules.Device, qdiscs map[int]string, own tcfilter.Own) map[int]string {
	controls := make(map[int]string)
	for bridge, devices := range inside {
		for _, dev := range devices {
			what, err := discover.Control(dev.Index, qdiscs[dev.Index], own)
			if errors.Is(err, unix.ENODEV) {
				continue // that it is gone is heard of
			}
			if err != nil {
				what = err.Error() // in doubt
			}
			if what != "" {
				controls[bridge] = fmt.Sprintf("packets of its bridge must meet what %s has: %s", dev.Name, what)
			}
		}
	}
	return controls
}

// unreadFinding says why nothing goes express while the rules are not known.
func (p *policy) unreadFinding() (f api.Finding, unread bool) {
	if p.err == nil {
		return f, false
	}
	return api.Finding{
		Level: "fail", What: "every packet goes regular: the rules could not be read",
		Why: p.err.Error(), Remedy: "it is tried again every second; 'scon doctor' tells more",
	}, true
}

// ruleFinding names the rule that keeps a connection regular.
func ruleFinding(what string, r rules.Rule) api.Finding {
	why := "it judges single packets, by "
	if r.ByCounter() {
		why = "it counts every packet (exact_counters), "
	}
	return api.Finding{
		Level: "note", What: what + " " + r.String(),
		Why: why + r.Why + ": " + r.Text,
	}
}
