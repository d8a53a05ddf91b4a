package differential

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket/layers"
)

// pair is two worlds of the same makeup, one with SCON.
type pair struct {
	plain, scon *world
	tool        tool // tool of the loaded rules
	alone       bool // the bridge is, as of the last case
	liberal     bool // conntrack is, the same
	cases       int
	function    []link.Link // of the case, in both worlds
	sent        uint64      // sound packets of the case
	express     uint64      // packets that went express in all cases before
	shares      []share     // of the cases
}

// difference is a packet with a different fate in the world with SCON.
type difference struct {
	step int
	of   string // a packet, or what else differs
	what string

	state string // of both worlds, "" if they are alike
}

func (d *difference) String() string {
	return fmt.Sprintf("step %d: %s%s", d.step, d.what, d.state)
}

// both runs fn in both worlds concurrently.
func (p *pair) both(fn func(w *world) error) error {
	failed := make(chan error, 1)
	go func() { failed <- fn(p.plain) }()
	return errors.Join(fn(p.scon), <-failed)
}

// run runs a case up to the first difference.
func (p *pair) run(c *Case) (d *difference, err error) {
	if err := p.begin(c); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.undo(c)) }()
	k := chanceIn(c)
	var talks []*talk
	for _, c := range c.Conns {
		talks = append(talks, newTalk(c, p.plain.makeup))
	}
	for i, s := range c.Steps {
		d, err := p.step(c, k, talks, s)
		if d != nil {
			d.step = i
		}
		if d != nil || err != nil {
			return d, err
		}
	}
	return p.compareConntrack(k)
}

// begin waits until both worlds are as they were built, then loads the case's
// rules and removes connections and packets of earlier cases.
func (p *pair) begin(c *Case) error {
	if err := p.both((*world).restored); err != nil {
		return err
	}
	if err := p.setFunction(c.Function); err != nil {
		return err
	}
	if err := p.setBridge(c.BridgeAlone); err != nil {
		return err
	}
	if err := p.setLiberal(c.Liberal); err != nil {
		return err
	}
	before, err := p.scon.generation()
	if err != nil {
		return err
	}
	if _, err := p.scon.bed.Daemon.Flush(""); err != nil {
		return err
	}
	script := c.Rules.script()
	if p.tool == legacy && c.Rules.Tool != legacy {
		script = ruleset{Tool: legacy, IPv6: c.Rules.IPv6}.empty() + script
	}
	p.tool = c.Rules.Tool
	err = p.both(func(w *world) error { return errors.Join(w.flushConntrack(), w.shell.run(script)) })
	if err != nil {
		return fmt.Errorf("load the rules: %w", err)
	}
	if err := p.scon.settle(before); err != nil {
		return err
	}
	if err := p.scon.calm(); err != nil {
		return err
	}
	return p.both(func(w *world) error { _, err := w.collect(); return err })
}

// setLiberal has conntrack judge sequence numbers, or not: then programs compose connections.
// The daemon looks at that at intervals, too.
func (p *pair) setLiberal(liberal bool) error {
	if p.liberal == liberal && p.cases > 1 {
		return nil
	}
	p.liberal = liberal
	return p.sysctl(fmt.Sprintf("net.netfilter.nf_conntrack_tcp_be_liberal=%d", map[bool]int{true: 1}[liberal]))
}

// sysctl writes settings in both worlds, and waits until the daemon has noticed.
func (p *pair) sysctl(settings string) error {
	if err := p.both(func(w *world) error { return w.shell.run("sysctl -q -w " + settings + "\n") }); err != nil {
		return err
	}
	time.Sleep(time.Second)
	_, err := p.scon.bed.Daemon.Status() // so that a daemon that rests looks
	return err
}

// setBridge lets Netfilter look into the bridge, or not. The kernel does not announce
// that: the daemon looks at it at intervals, and should not find it in mid-case.
func (p *pair) setBridge(alone bool) error {
	if p.alone == alone && p.cases > 1 {
		return nil
	}
	p.alone = alone
	return p.sysctl(fmt.Sprintf("net.bridge.bridge-nf-call-iptables=%[1]d net.bridge.bridge-nf-call-ip6tables=%[1]d", map[bool]int{false: 1}[alone]))
}

// undo reverts a case's changes.
func (p *pair) undo(c *Case) error {
	var script strings.Builder
	for _, s := range c.Steps {
		if s.Change != nil && s.Change.Undo != "" {
			fmt.Fprintf(&script, "{ %s\n} 2>/dev/null || true\n", s.Change.Undo)
		}
	}
	return p.both(func(w *world) error { return w.shell.run(script.String()) })
}

// step makes a step's change and sends its packets in both worlds.
func (p *pair) step(c *Case, k chance, talks []*talk, s step) (*difference, error) {
	time.Sleep(s.Pause)
	before, err := p.scon.generation()
	if err != nil {
		return nil, err
	}
	shots := s.shots(talks)
	for _, shot := range shots {
		if shot.sound {
			p.sent++
		}
	}
	if s.Change != nil {
		if err := p.both(func(w *world) error { return w.shell.run(s.Change.Script) }); err != nil && !c.Part {
			return nil, err
		}
		for i := range shots {
			shots[i].excuse = notHeard
		}
		if s.Change.Tracks {
			if err := p.scon.settle(before); err != nil {
				return nil, err
			}
		}
	}
	// The world with SCON first, so that the daemon has had less time.
	scon, err := p.scon.fire(shots)
	if err != nil {
		return nil, err
	}
	plain, err := p.plain.fire(shots)
	if err != nil {
		return nil, err
	}
	again, err := p.again(c, shots, plain, scon)
	if err != nil {
		return nil, err
	}
	scon = append(scon, again...)
	if s.Change != nil && !s.Change.Quiet {
		if err := p.scon.settle(before); err != nil {
			return nil, err
		}
	}
	if s.Settle || s.Change != nil {
		if err := p.scon.calm(); err != nil {
			return nil, err
		}
	}
	d := compare(k, talks, shots, plain, scon)
	learn(k, talks, shots, plain, scon)
	if d != nil {
		d.state, err = p.state(k)
	}
	return d, err
}

// told is longer than it takes until conntrack has been told of the end of a short connection.
const told = 500 * time.Millisecond

// again sends those SYNs again, as TCP does, that came while conntrack had not been told of the
// end of the connection before: a permitted difference, documented in docs/limits.md.
func (p *pair) again(c *Case, shots []shot, plain, scon []captured) ([]captured, error) {
	if !c.Liberal {
		return nil, nil
	}
	lost := slices.DeleteFunc(slices.Clone(shots), func(s shot) bool {
		at := l4Of(s.frame) + 13
		const synAck, syn = 0x12, 0x02
		if at >= len(s.frame) || protoOf(s.frame) != layers.IPProtocolTCP || s.frame[at]&synAck != syn {
			return true
		}
		_, without := s.arrived(plain)
		_, with := s.arrived(scon)
		return with || !without
	})
	if len(lost) == 0 {
		return nil, nil
	}
	time.Sleep(told)
	return p.scon.fire(lost)
}

// shots returns the frames of a step's items.
func (s step) shots(talks []*talk) (shots []shot) {
	for _, it := range s.Items {
		m := &maker{
			talk: talks[it.Conn], index: it.Conn, dir: it.Dir, id: it.ID, item: int(it.ID),
			r: rand.New(rand.NewPCG(it.Seed, 1)),
		}
		if it.Dir == reply && !m.learned {
			continue // no packet has arrived yet
		}
		kindOf(it.Kind).make(m)
		shots = append(shots, m.shots...)
	}
	return shots
}

// fire sends frames and returns the packets that arrive.
func (w *world) fire(shots []shot) ([]captured, error) {
	for _, s := range shots {
		if err := w.ends[s.node].send(s.offload, s.frame); err != nil {
			return nil, fmt.Errorf("item %04x: %w", s.item, err)
		}
	}
	return w.collect()
}

// learn updates the connections by the fates of their packets.
func learn(k chance, talks []*talk, shots []shot, plain, scon []captured) {
	for _, s := range shots {
		t := talks[s.conn]
		if !s.sound && s.ends == 0 {
			continue
		}
		if c, ok := s.arrived(plain); ok && s.sound {
			t.learn(s, c, k)
		}
		if c, ok := s.arrived(plain); ok && s.ends != 0 {
			t.acknowledge(s, c)
		}
		if s.sound {
			t.imitate(s, scon)
		}
	}
}

// arrived finds the packet that a frame became.
func (s shot) arrived(all []captured) (c captured, ok bool) {
	i := slices.IndexFunc(all, func(c captured) bool {
		return c.to != s.node && len(c.data) >= l4Of(c.data)+udpLen && idOf(c.data) == idOf(string(s.frame)) &&
			isIPv6(c.data) == isIPv6(s.frame) && protoOf(c.data) == protoOf(s.frame)
	})
	if i < 0 {
		return c, false
	}
	return all[i], true
}
