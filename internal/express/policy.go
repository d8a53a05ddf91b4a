package express

import (
	"log/slog"
	"maps"
	"slices"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/nfhooks"
	"github.com/scon-project/scon/internal/express/rules"
)

// policy is the kernel's rules as last read: which connections have to stay
// regular, and which are dropped. It belongs to the loop.
type policy struct {
	rules.Ruleset
	opts    rules.Options
	foreign *nfhooks.Reader // lists what judges packets at Netfilter's hooks and is no rule
	log     *slog.Logger
	during  func(wait func()) // runs what takes long
	version uint64            // of Ruleset: how often it was read
	err     error             // why the rules could not be read
	drops   drops
}

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
	return policy{opts: o, foreign: foreign, log: log, during: during}, nil
}

func (p *policy) close() error { return p.foreign.Close() }

// read reads the rules again. An error is logged once and kept in p.err.
func (p *policy) read() error {
	foreign, err := p.foreign.Foreign()
	p.opts.Foreign, p.opts.Tracked = foreign, p.foreign.Tracked
	var ruleset rules.Ruleset
	if err == nil {
		ruleset, err = rules.Read(p.opts)
	}
	if err != nil {
		if p.err == nil {
			p.log.Error("reading the rules: every packet goes regular", "error", err)
		}
		p.err = err
		return err
	}
	p.Ruleset, p.err = ruleset, nil
	p.version++
	return nil
}

// changedUnannounced names what may have changed without an announcement, ""
// for nothing.
func (p *policy) changedUnannounced() string {
	foreign, err := p.foreign.Foreign()
	if err != nil || !slices.Equal(foreign, p.opts.Foreign) || !maps.Equal(p.foreign.Tracked, p.opts.Tracked) {
		return "functions at Netfilter's hooks changed"
	}
	if stale, err := p.Stale(); stale || err != nil {
		return "iptables-legacy changed without its lock"
	}
	return ""
}

// Discardable reports whether the rules certainly drop every packet of a
// connection that conntrack does not know.
func (p *policy) Discardable(f rules.Flow) bool {
	d := &p.drops
	if d.version != p.version {
		d.version = p.version
		p.during(func() {
			d.rules, d.err = rules.Read(rules.Options{ExactCounters: p.opts.ExactCounters, Foreign: p.opts.Foreign, Drops: true})
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

// ruleFinding names the rule that keeps a connection regular.
func ruleFinding(what string, r rules.Rule) api.Finding {
	if r.Foreign() {
		return api.Finding{
			Level: "note", What: what + " " + r.Text,
			Why:    "it is no rule: it may judge single packets by anything",
			Remedy: "remove it if it is not needed",
		}
	}
	why := "it judges single packets, by "
	if r.ByCounter() {
		why = "it counts every packet (exact_counters), "
	}
	return api.Finding{
		Level: "note", What: what + " " + r.String(),
		Why: why + r.Why + ": " + r.Text,
	}
}
