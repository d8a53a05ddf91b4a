package rules

import (
	"fmt"
	"hash/maphash"
	"maps"
)

// Same reports whether two rulesets of the same generation of nftables are equal. ok is
// false if they are of different ones.
func (l *Live) Same(o *Live) (same, ok bool) {
	if l.nft == nil || o.nft == nil || l.nft.generation != o.nft.generation {
		return false, false
	}
	return maps.Equal(l.nft.digests(), o.nft.digests()), true
}

// Fresh reads the ruleset anew, to compare with this one. Any goroutine may call it.
func (l *Live) Fresh() (*Live, error) {
	fresh := NewLive(Options{ExactCounters: l.exactCounters})
	fresh.alone = true
	_, err := fresh.Follow(nil, nil)
	return fresh, err
}

// digests are those of all chains and sets that are kept, by their names. Of sets whose
// elements are not known, or expire, there is none.
func (n *nftables) digests() map[string]uint64 {
	all := make(map[string]uint64)
	for _, t := range n.tables {
		if !t.kept {
			continue
		}
		for _, c := range t.chains {
			var h maphash.Hash
			h.SetSeed(seed)
			if b := c.base; b != nil {
				fmt.Fprint(&h, b.hook, b.families, b.priority, b.devices, b.nat, b.drops)
			}
			for _, r := range c.all {
				fmt.Fprint(&h, r.handle, r.sum)
			}
			all[c.String()] = h.Sum64()
		}
		for name, s := range t.sets {
			if t.set(name); !s.unknown && !s.expires {
				all[t.key.String()+" @"+name] = s.sum()
			}
		}
	}
	return all
}
