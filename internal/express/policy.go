package express

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/nfhooks"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/numbers"
)

// policy is the kernel's rules: which connections have to stay regular, and which
// are dropped. It belongs to the loop; Note and Lost of live may be called by any
// goroutine.
type policy struct {
	live    *rules.Live
	foreign *nfhooks.Reader // lists what judges packets at Netfilter's hooks and is no rule
	nft     *nlmsg.Requests // asks for tables
	known   []nfhooks.Hook  // as last listed
	tracked map[uint8]bool  // and the families whose packets conntrack sees
	log     *slog.Logger
	during  func(wait func())     // runs what takes long
	failed  time.Time             // when they could not be read
	pause   time.Duration         // how long they are not tried again
	version uint64                // how often the rules may have changed
	read    uint64                // how often they were read afresh
	tunnels map[rules.Tunnel]bool // that TouchesTunnel was asked about
	err     error                 // why the rules could not be read
	drops   drops
	check   check
	fresh   func() (*rules.Live, error) // reads the rules anew, outside the loop
}

// check is the comparison of the rules that were followed with those that the kernel
// has, now and then.
type check struct {
	every   time.Duration // from one to the next, at least
	next    time.Time
	version uint64 // of the rules that were compared last
	runs    bool
	ahead   uint32 // the kernel's generation, if the rules were of an older one
}

// checkEvery is the time between two checks, and checkShare how much longer than a check
// it is at least.
const (
	checkEvery = 10 * time.Minute
	checkShare = 200
)

// readPause is for how many times the time of an attempt to read the rules the next one
// is not made.
const readPause = 4

// drops are the rules with everything that decides about first packets.
// Reading them takes longer than what Conentries need, so they are read only
// when a connection seems to be dropped, and once for each version of the
// rules.
type drops struct {
	version uint64
	rules   rules.Ruleset
	err     error
}

// openPolicy prepares to read the rules of this namespace. during runs what
// takes long.
func openPolicy(o rules.Options, log *slog.Logger, during func(wait func())) (policy, error) {
	foreign, err := nfhooks.Open()
	if err != nil {
		return policy{}, err
	}
	if foreign.Blind != nil {
		log.Info("functions of modules at Netfilter's hooks cannot be listed", "reason", foreign.Blind)
	}
	nft, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
	if err != nil {
		return policy{}, errors.Join(err, foreign.Close())
	}
	live := rules.NewLive(o)
	return policy{
		live: live, fresh: live.Fresh, foreign: foreign, nft: nft, log: log, during: during, tunnels: make(map[rules.Tunnel]bool),
		check: check{every: checkEvery, next: time.Now().Add(checkEvery)},
	}, nil
}

func (p *policy) close() error { return errors.Join(p.foreign.Close(), p.nft.Close()) }

// follow brings the rules up to date and returns what has changed. An error is
// logged once and kept in p.err, unless it is that a transaction is not announced to
// its end.
func (p *policy) follow() (c *rules.Change, err error) {
	began := time.Now()
	if p.err != nil && began.Sub(p.failed) < p.pause {
		return nil, p.err
	}
	p.known, err = p.foreign.Foreign()
	p.tracked = p.foreign.Tracked
	if err == nil {
		c, err = p.live.Follow(p.known, p.tracked)
	}
	switch {
	case errors.Is(err, rules.ErrUnfinished):
		return nil, err
	case err != nil:
		if p.err == nil {
			p.log.Error("reading the rules: every packet goes regular", "error", err)
		}
		p.err, p.failed = err, time.Now()
		p.pause = readPause * p.failed.Sub(began)
		return nil, err
	}
	p.err = nil
	p.version++
	if c.Fresh() {
		p.read++
	}
	return c, nil
}

// TouchesTunnel is that of the rules.
func (p *policy) TouchesTunnel(t rules.Tunnel) (rules.Rule, bool) {
	p.tunnels[t] = true
	return p.live.TouchesTunnel(t)
}

// checkIn compares the rules, if that is due and they have changed since. They are read
// outside the loop; inLoop runs what follows there. differ is called if they are
// not what the kernel has. The loop calls it once a second: rules that are of an older
// generation than the kernel's are behind only if they still are a second later.
func (p *policy) checkIn(now time.Time, inLoop func(func()), differ func()) {
	c := &p.check
	report := func(why string) {
		p.log.Error("the rules that were followed differ from the kernel's; they are read again", "reason", why)
		differ()
	}
	if ahead := c.ahead; ahead != 0 {
		if c.ahead = 0; p.err == nil && int32(ahead-p.live.Generation()) > 0 {
			report("a change was missed")
		}
	}
	if c.runs || now.Before(c.next) || c.version == p.version || p.err != nil {
		return
	}
	c.runs, c.version = true, p.version
	go func() {
		fresh, err := p.fresh()
		took := time.Since(now)
		inLoop(func() {
			c.runs, c.next = false, now.Add(max(c.every, checkShare*took))
			if err != nil {
				return
			}
			if same, ok := p.live.Same(fresh); ok && !same {
				report("their contents differ")
			} else if !ok { // they have changed meanwhile
				c.version, c.ahead = 0, fresh.Generation()
			}
		})
	}()
}

// everything returns why a change may concern all connections, "" if only those that
// it says.
func (p *policy) everything(c *rules.Change) string {
	if why := c.Everything(); why != "" {
		return why
	}
	for t := range p.tunnels {
		if c.ConcernsTunnel(t) {
			return "rules for tunnels changed"
		}
	}
	return ""
}

// otherFunctions reports whether functions at Netfilter's hooks have changed.
func (p *policy) otherFunctions() bool {
	foreign, err := p.foreign.Foreign()
	return err != nil || !slices.Equal(foreign, p.known) || !maps.Equal(p.foreign.Tracked, p.tracked)
}

// otherLegacy reports whether iptables-legacy has changed.
func (p *policy) otherLegacy() bool {
	stale, err := p.live.Stale()
	return stale || err != nil
}

// ownerEnded reports whether a table of nftables has gone with the process that owned it.
func (p *policy) ownerEnded() bool {
	ended, err := p.live.OwnerEnded(p.nft)
	return ended || err != nil
}

// gotLegacy reports whether iptables-legacy has tables, and had none when the rules
// were read.
func (p *policy) gotLegacy() bool {
	has, err := rules.LegacyTables()
	return (has || err != nil) && !p.live.HasLegacy()
}

// Discardable reports whether the rules certainly drop every packet of a
// connection that conntrack does not know.
func (p *policy) Discardable(f rules.Flow) bool {
	d := &p.drops
	if d.version != p.version {
		d.version = p.version
		p.during(func() {
			d.rules, d.err = p.live.ReadDrops()
		})
		if d.err != nil {
			p.log.Info("dropped packets stay regular", "error", d.err)
		}
	}
	if d.err != nil {
		return false
	}
	_, dropped := d.rules.Discardable(f)
	return dropped
}

// unreadFinding says why nothing goes express while the rules are not known.
func (p *policy) unreadFinding() (f api.Finding, unread bool) {
	if p.err == nil {
		return f, false
	}
	return api.Finding{
		Level: "fail", What: "every packet goes regular: the rules could not be read",
		Why: p.err.Error(), Remedy: "SCON retries every second; 'scon doctor' has the details",
	}, true
}

// keptFinding names the rule that keeps a container's latest connection regular, or that
// did until a time that is not zero.
func keptFinding(r rules.Rule, until time.Time) api.Finding {
	if until.IsZero() {
		return ruleFinding("the latest of them was kept regular by", r)
	}
	name := r.String()
	if r.Foreign() {
		name = r.Text
	}
	return api.Finding{
		Level: "note",
		What:  fmt.Sprintf("the latest of them was kept regular until %s ago by %s", numbers.Millis(time.Since(until).Milliseconds()), name),
		Why:   "no rule keeps it regular any more",
	}
}

// ruleFinding names the rule that keeps a connection regular.
func ruleFinding(what string, r rules.Rule) api.Finding {
	f := api.Finding{Level: "note", What: what + " " + r.String(), Remedy: r.Remedy(), Rule: r.Document()}
	switch {
	case r.OfQueue():
		f.Why = r.Why
	case r.Foreign():
		f.What, f.Why = what+" "+r.Text, "it is no rule: it may judge single packets by anything"
	case r.ByCounter():
		f.Why = "it counts every packet (exact_counters), " + r.Why + ": " + r.Text
	default:
		f.Why = "it judges single packets, by " + r.Why + ": " + r.Text
	}
	return f
}
