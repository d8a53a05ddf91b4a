package rules

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Expressions that look packets up in sets, maps and objects.

func (k *compiler) lookup(e nftExpr) {
	const lookupFlags, inverted = 5, 1
	name := e.text(unix.NFTA_LOOKUP_SET)
	s := k.set(name)
	if s == nil {
		k.strange(e)
		return
	}
	at, holds, ok := k.register(e.number(unix.NFTA_LOOKUP_SREG), s.key)
	if !ok {
		k.strange(e)
		return
	}
	not := e.number(lookupFlags)&inverted != 0
	shown := "@" + name
	if s.flags&unix.NFT_SET_ANONYMOUS != 0 {
		shown = "{ ... }"
	}
	text, to := k.keyText(at, s.key)+operator(not)+shown, at+s.key
	k.step(step{why: name + " (its elements judge packets)", pure: true, check: func(*machine) truth {
		if s.judges {
			return varies
		}
		return yes
	}})
	k.step(step{why: "@" + name, pure: true, silent: s.isSilent, check: func(*machine) truth { return yes }})
	if !e.has(unix.NFTA_LOOKUP_DREG) || e.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT {
		k.asks(at, s.key)
	}
	switch {
	case !e.has(unix.NFTA_LOOKUP_DREG):
		k.step(step{text: text, why: holds.what(), pure: true, check: func(m *machine) truth {
			t, _ := s.find(m.registers[at:to])
			return t.invert(not)
		}})
	case e.number(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT:
		k.vmap(s, at, to, text, holds.what())
	default:
		k.mapData(e, s, at, to, text)
	}
}

// vmap compiles a look-up that finds a verdict.
func (k *compiler) vmap(s *set, at, to int, text, why string) {
	k.rule.maps = append(k.rule.maps, s)
	k.step(step{text: text, why: why, pure: true, check: func(m *machine) truth {
		t, found := s.find(m.registers[at:to])
		switch {
		case s.unknown && m.first:
			m.verdicts = []verdict{{kind: jump, target: unknownChain(s.in.key.String(), s.name)}}
		case s.unknown:
			t = needsKnowing(t)
		case len(found) == 1:
			m.verdicts = found[0].verdict
		default:
			all := make([]verdict, 0, len(m.verdicts)+len(found))
			all = append(all, m.verdicts...)
			for _, e := range found {
				all = append(all, e.verdict...)
			}
			m.verdicts = all
		}
		return t
	}})
}

// needsKnowing counts packets as judged one by one if they may find any
// verdict.
func needsKnowing(t truth) truth {
	if t == no {
		return no
	}
	return varies
}

// mapData compiles a look-up that finds a value.
func (k *compiler) mapData(e nftExpr, s *set, at, to int, text string) {
	const longest = 16
	dst, result, ok := k.register(e.number(unix.NFTA_LOOKUP_DREG), longest)
	if !ok {
		k.strange(e)
		return
	}
	*result = source{text: text, format: hex}
	k.step(step{text: text, pure: true, check: func(m *machine) truth {
		key := m.registers[at:to]
		t, found := s.find(key)
		switch {
		case t == yes && len(found) == 1 && len(found[0].data) <= longest:
			clear(m.registers[dst : dst+longest])
			setKnown(m.registers[dst:], found[0].data)
		case t == varies:
			vary(m.registers[dst : dst+longest])
			t = maybe // reported where the value is used
		default:
			clear(m.registers[dst : dst+longest])
		}
		return t
	}})
}

// objref compiles the use of a named object, or of one that a map holds for
// the packet.
func (k *compiler) objref(e nftExpr) {
	const counter, ctHelper, ctTimeout, secmark, ctExpect = 1, 3, 7, 8, 9 // NFT_OBJECT_*
	typ, name := e.number(unix.NFTA_OBJREF_IMM_TYPE), e.text(unix.NFTA_OBJREF_IMM_NAME)
	mapped := !e.has(unix.NFTA_OBJREF_IMM_TYPE)
	if mapped {
		typ, name = k.objrefMap(e)
	}
	switch {
	case typ == counter && mapped:
		if len(k.exact.named) > 0 { // which object of the map it is, is not known
			k.step(counting("counter name "+name, "in "+name))
		}
	case typ == counter:
		k.counter("counter name "+name, name)
	case typ == ctHelper:
		k.step(expecting(always("")))
	case typ == ctTimeout:
		k.step(always(""))
	case typ == secmark: // SELinux judges packets by it
		k.step(silently(always("secmark name " + name)))
	default:
		kind := ""
		if kinds := [...]string{2: "quota", 4: "limit", 5: "ct count", ctExpect: "ct expectation"}; int(typ) < len(kinds) {
			kind = kinds[typ]
		}
		s := needing(strings.TrimSpace(kind+" name "+name), kind)
		if typ == ctExpect {
			s = expecting(s)
		}
		k.step(s)
	}
}

// objrefMap compiles the look-up of an object: packets that find one go on. It
// returns the kind of the objects, and the map's name.
func (k *compiler) objrefMap(e nftExpr) (typ uint32, name string) {
	name = e.text(unix.NFTA_OBJREF_SET_NAME)
	s := k.set(name)
	if s == nil {
		return 0, "@" + name
	}
	at, holds, ok := k.register(e.number(unix.NFTA_OBJREF_SET_SREG), s.key)
	if !ok {
		return 0, "@" + name
	}
	text, to := k.keyText(at, s.key)+" @"+name, at+s.key
	k.asks(at, s.key)
	k.step(step{text: text, why: holds.what(), pure: true, silent: s.isSilent, check: func(m *machine) truth {
		t, _ := s.find(m.registers[at:to])
		return t
	}})
	return s.holds, "@" + name
}

// dynset compiles an update of a set by packets. If it has expressions,
// look-ups in the set judge packets as well.
func (k *compiler) dynset(e nftExpr) {
	name := e.text(unix.NFTA_DYNSET_SET_NAME)
	if s := k.set(name); s != nil {
		judges := s.judges
		for _, x := range e.ofElements() {
			judges = judges || x.name != "" && x.name != "counter"
		}
		if !s.dynamic || judges != s.judges { // its flags need not say so
			k.noteSet(name)
			s.forget()
			s.dynamic, s.judges = true, judges
			for _, r := range k.lookers[name] {
				k.recount(r, s, s, nil)
			}
		}
	}
	k.step(needing("update @"+name, "set update"))
}

// ofElements returns the expressions that elements get by which packets update a set.
func (e *nftExpr) ofElements() []nftExpr {
	const dynsetExpressions = 10
	return append(expressions(e.get(dynsetExpressions)), expression(e.get(unix.NFTA_DYNSET_EXPR)))
}
