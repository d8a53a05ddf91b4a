package rules

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/nfhooks"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Live is a ruleset that follows the kernel's announcements. Note and Lost may be
// called by any goroutine, the rest by one.
type Live struct {
	Ruleset
	exactCounters []string
	opts          Options
	nft           *nftables       // nil until it is read
	others        Ruleset         // iptables-legacy, and functions that are no rules
	listed        bool            // PerPacket is up to date
	led           map[*chain]bool // chains whose rules are followed
	families      map[family]bool // of iptables-legacy's tables
	tables        []legacyTable   // of iptables-legacy, as they were read
	feed          feed
	alone         bool // nobody calls Note
}

// NewLive returns a ruleset that the first Follow reads.
func NewLive(opts Options) *Live { return &Live{opts: opts, exactCounters: opts.ExactCounters} }

// feed is announcements that wait for Follow.
type feed struct {
	mu       sync.Mutex
	complete []announced
	partial  []nlmsg.Message
	since    time.Time // when partial began
	size     int       // bytes
	lost     string    // why the rules have to be read again
}

// announced is a transaction of nftables.
type announced struct {
	generation uint32
	messages   []nlmsg.Message
}

// mostNoted bounds the announcements that wait, in bytes.
const mostNoted = 64 << 20

// mostUnfinished is how long the end of a transaction is waited for once messages were
// lost: it may be among them, and all rules are read then.
const mostUnfinished = time.Second

// ErrUnfinished means that a transaction was not announced to its end.
var ErrUnfinished = errors.New("a transaction of nftables is being announced")

// Note takes a message of nftables, and reports whether it is the first one of a
// transaction.
func (l *Live) Note(m nlmsg.Message) (first bool) {
	f := &l.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.Type&0xff == unix.NFT_MSG_NEWGEN {
		if len(m.Data) >= nlmsg.SizeofNfgenmsg {
			f.complete = append(f.complete, announced{parseAttrs(m.Data[nlmsg.SizeofNfgenmsg:]).number(unix.NFTA_GEN_ID), f.partial})
			f.partial = nil
		}
		return false
	}
	if f.lost == "" {
		m.Data = bytes.Clone(m.Data)
		f.size += len(m.Data)
	} else {
		m.Data = nil
	}
	if first = len(f.partial) == 0; first {
		f.since = time.Now()
	}
	f.partial = append(f.partial, m)
	if f.size > mostNoted {
		f.drop("too many announcements")
	}
	return first
}

// drop forgets what was noted.
func (f *feed) drop(why string) {
	f.lost, f.size, f.complete = why, 0, nil
	f.partial = slices.Clip(f.partial[:min(len(f.partial), 1)])
}

// Lost means that messages were lost, or that rules may have changed in a way that
// Note is not told of.
func (l *Live) Lost(why string) {
	l.feed.mu.Lock()
	defer l.feed.mu.Unlock()
	l.feed.drop(why)
}

// take returns what was noted, and forgets it.
func (f *feed) take() (complete []announced, lost string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.partial) > 0 {
		if f.lost == "" || time.Since(f.since) < mostUnfinished {
			return nil, "", ErrUnfinished
		}
		f.partial = nil
	}
	complete, lost = f.complete, f.lost
	f.complete, f.lost, f.size = nil, "", 0
	return complete, lost, nil
}

// between returns the messages of the generations behind one, up to another, which is
// waited for. It reports false if they are not all there.
func (f *feed) between(from, to uint32) (all []nlmsg.Message, ok bool) {
	for end := time.Now().Add(mostUnfinished); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		lost, last := f.lost, from
		all = nil
		for _, a := range f.complete {
			if int32(a.generation-from) > 0 && int32(to-a.generation) >= 0 {
				if a.generation != last+1 {
					lost = "messages"
				}
				last = a.generation
				all = append(all, a.messages...)
			}
		}
		f.mu.Unlock()
		if lost != "" || last == to || time.Now().After(end) {
			return all, lost == "" && last == to
		}
	}
}

// Follow brings the ruleset up to date, that of iptables-legacy as well, and says what has changed since the last
// call. ErrUnfinished means that it has to be called again when the transaction has
// been announced; after another error the next call reads everything again.
func (l *Live) Follow(foreign []nfhooks.Hook, tracked map[uint8]bool) (c *Change, err error) {
	complete, lost, err := l.feed.take()
	if err != nil {
		return nil, err
	}
	families, err := legacyFamilies()
	if err != nil {
		l.nft = nil
		return nil, err
	}
	switch {
	case l.nft == nil:
		lost = "they were not read"
	case lost != "":
	case !slices.Equal(foreign, l.opts.Foreign):
		lost = "functions at Netfilter's hooks changed"
	}
	got := !maps.Equal(families, l.families)
	before := l.Ruleset
	l.opts.Foreign, l.opts.Tracked, l.families = foreign, tracked, families
	if lost == "" {
		c = l.apply(complete)
		if lost = l.nft.doubtful; lost == "" {
			if err := l.followLegacy(c); err != nil {
				l.nft = nil
				return nil, err
			}
			if got && c.why == "" { // which changes without an announcement
				c.why = "iptables-legacy has got tables, or has none any more"
			}
			if l.exact.late() {
				lost = "a rule compares the counters of a set of ipset"
			}
		}
		if lost == "" {
			l.refresh()
			c.tracks = c.tracks || l.tracksOthers(before) || !c.Nothing() && len(before.early)+len(l.early) > 0
			return c, nil
		}
	}
	if err := l.read(); err != nil {
		l.nft = nil
		return nil, err
	}
	return &Change{why: lost, fresh: true}, nil
}

// Generation returns nftables' generation that the ruleset is of.
func (l *Live) Generation() uint32 {
	if l.nft == nil {
		return 0
	}
	return l.nft.generation
}

// ReadDrops is Read with Options.Drops, if there are not too many rules for it.
func (l *Live) ReadDrops() (Ruleset, error) {
	if l.nft != nil && l.nft.rules > mostDropRules {
		return Ruleset{}, ErrTooMany
	}
	opts := l.opts
	opts.Drops = true
	return Read(opts)
}

// apply takes announced transactions in.
func (l *Live) apply(all []announced) *Change {
	n := l.nft
	n.cool()
	n.begin()
	for _, a := range all {
		switch int32(a.generation - n.generation) {
		case 1:
		default:
			if int32(a.generation-n.generation) > 1 {
				n.doubt("messages were lost")
			}
			continue // it was read already
		}
		n.generation = a.generation
		for _, m := range a.messages {
			n.take(m)
		}
	}
	return n.end()
}

// read reads everything.
func (l *Live) read() error { return reading(l.opts, l.readWith) }

func (l *Live) readWith(exact *exactCounters) error {
	noted := l.feed.between
	if l.alone {
		noted = func(uint32, uint32) ([]nlmsg.Message, bool) { return nil, false }
	}
	n, err := readNFTables(l.opts, exact, noted)
	if err != nil {
		return fmt.Errorf("read nftables: %w", err)
	}
	others, tables, err := readOthers(l.opts, exact)
	if err != nil {
		return err
	}
	l.nft, l.others = n, newRuleset(others, l.opts)
	l.exact, l.tables, l.legacy = exact, tables, digest(tables)
	l.refresh()
	return nil
}

// refresh brings what Touches follows up to date.
func (l *Live) refresh() {
	r := Ruleset{opts: l.opts, exact: l.exact, legacy: l.legacy, tabled: maps.Clone(l.families), hasLegacy: len(l.families) > 0}
	l.nft.addFamilies(r.tabled)
	led := l.nft.judging(l.others.bases)
	for c := range l.led {
		if !led[c] {
			c.activate(false)
		}
	}
	for c := range led {
		c.activate(true)
	}
	l.led = led
	for _, b := range l.nft.bases {
		if led[b.chain] && !b.starting() {
			r.bases = append(r.bases, b)
		}
		if led[b.chain] && b.outer() {
			r.outer = append(r.outer, b)
		}
		if led[b.chain] && b.isEarly() {
			r.early = append(r.early, b)
		}
	}
	r.bases, r.outer = append(r.bases, l.others.bases...), append(r.outer, l.others.outer...)
	r.early = append(r.early, l.others.early...)
	r.orderMarks()
	r.silent, r.hidesEnds = l.others.silent, l.others.hidesEnds || l.nft.hidesEnds
	r.timesOut = l.timesOut || l.nft.timesOut // those that have a policy keep it
	for c := range led {
		r.silent = r.silent || slices.ContainsFunc(c.rules, func(r *rule) bool { return r.silent })
	}
	l.Ruleset, l.listed = r, false
}

// PerPacket lists the rules that judge single packets of established
// connections.
func (l *Live) PerPacket() []Rule {
	if !l.listed {
		l.listed, l.perPacket = true, l.list()
	}
	return l.perPacket
}

// judging returns the chains that packets may get to which may get to a rule that
// judges single packets, keeps them from conntrack, or is silent; or sets a mark, if those of
// connections are set, there or by other base chains.
func (n *nftables) judging(others []*base) map[*chain]bool {
	led := make(map[*chain]bool)
	marks := usesOf(others)
	for _, b := range n.bases {
		b.findUses()
		marks |= b.uses
	}
	for _, b := range n.bases {
		reached := b.reached(false)
		leads := marks&setsConnMark != 0 && b.uses != 0
		for c := range reached {
			if leads || c.judging > 0 {
				maps.Copy(led, reached)
				break
			}
		}
	}
	return led
}

// activate makes a chain's rules that decide what packets reach those that Touches
// looks for; or none.
func (c *chain) activate(led bool) {
	if led && c.activated || !led && len(c.rules) == 0 {
		return
	}
	for _, r := range c.rules {
		r.active = false
	}
	c.rules, c.activated = nil, led
	if !led {
		return
	}
	for _, r := range c.all {
		if r.leaves || r.matters() || r.uses != 0 {
			r.active = true
			r.ready()
			c.rules = append(c.rules, r)
		}
	}
}
