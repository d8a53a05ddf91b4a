package contable

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/changes"
)

// mostLookedAt is how many Conentries MakeStale goes through for one change: a
// millisecond. To confirm more of them costs less than to find those that are
// concerned.
const mostLookedAt = 4096

// mostLookedAtInSecond bounds what MakeStale goes through in a second, some 50 ms: changes
// can be a container's doing. It is no time, since other work on a busy machine would
// take it.
const mostLookedAtInSecond = 50 * mostLookedAt

// MakeStale withdraws the decisions that a change can concern: a regular packet that
// enters later has to confirm each. It reports false if they are not known, or too
// many: then every decision has to be confirmed. Any goroutine may call it.
func (t *Table) MakeStale(s changes.Scope) bool {
	if s == (changes.Scope{}) {
		return false
	}
	l := &t.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.second) >= time.Second {
		l.second, l.looked = now, 0
	}
	if l.looked >= mostLookedAtInSecond {
		return false
	}
	l.looked += 1 + len(l.discards) + len(l.pairs)
	if len(l.discards) > mostLookedAt || len(l.pairs) > 4*mostLookedAt || !t.withdrawEarly() {
		return false
	}
	for _, d := range l.discards {
		atomic.StoreUint64(&t.half(d.slot).OutAddrs, 0) // as learn.h checks it
		if !t.withdraw(d.slot, nil) {
			return false
		}
	}
	if s.Ports != [2]int{} {
		return t.withdrawPorts(s)
	}
	if atomic.LoadUint32(&t.settings.Tunnels) != 0 {
		return false // outer packets have addresses and next hops of their own
	}
	if s.Network.IsValid() {
		return t.withdrawAmong(func(e *Conentry) bool { return t.inNetwork(e, s.Network) }, nil)
	}
	return t.withdrawNextHop(s.NextHop)
}

// withdrawNextHop withdraws the decisions about what leaves to a MAC address, or comes from
// it.
func (t *Table) withdrawNextHop(mac changes.MAC) bool {
	return t.withdrawAmong(func(*Conentry) bool { return true },
		func(h *datapath.Half) bool { return leaves(h, mac) || comes(h, mac) })
}

// withdrawAmong withdraws those decisions of Conentries that are concerned, nil for all.
func (t *Table) withdrawAmong(which func(*Conentry) bool, concerned func(*datapath.Half) bool) bool {
	if t.live.conentries > mostLookedAt {
		return false
	}
	t.live.looked += t.live.conentries
	done := true
	t.eachLive(func(e *Conentry) {
		done = done && (!which(e) || t.withdrawOf(e, concerned))
	})
	return done
}

// Withdraw withdraws the decisions of a Conentry: a regular packet that enters later has to
// confirm each. It reports false if a program keeps recording into it.
func (t *Table) Withdraw(e *Conentry) bool { return t.withdrawOf(e, nil) }

// withdrawOf withdraws those decisions of a Conentry that are concerned, nil for all.
func (t *Table) withdrawOf(e *Conentry, concerned func(*datapath.Half) bool) bool {
	done := true
	// Again, for what has been recorded about one half while the other's decision was still
	// there: by that a program says where the bridge sends its packets (bpf/lib/bridged.h).
	for range 2 {
		for _, slot := range e.allSlots() {
			done = t.withdraw(slot, concerned) && done
		}
	}
	return done
}

// withdrawPorts withdraws the decisions of containers' ports. Of another hooked device, a
// port of a bridge that leads out, it withdraws those with the scope's MAC address.
func (t *Table) withdrawPorts(s changes.Scope) bool {
	others := false
	for _, port := range s.Ports {
		entries, known := t.live.ports[port]
		if port == 0 || !known && t.opts.Hooked != nil && !t.opts.Hooked(port) {
			continue
		}
		if !known && s.NextHop != (changes.MAC{}) {
			others = true
			continue
		}
		if !known || entries.n > mostLookedAt {
			return false
		}
		t.live.looked += entries.n
		done := true
		t.among(port, func(e *Conentry) {
			done = done && t.Withdraw(e)
		})
		if !done {
			return false
		}
	}
	return !others || t.withdrawNextHop(s.NextHop)
}

// recording bounds how often withdraw asks whether a program has recorded a packet:
// some ten microseconds.
const recording = 10000

// noStamp is no packet's: theirs have 16 bits, and a generation above bit 31.
const noStamp = 1 << 16

// withdraw withdraws the decision of a half if concerned says so, nil for always.
// The packet that is being tracked entered before the change, and decides nothing
// either way. It reports false if a program keeps recording into the half.
func (t *Table) withdraw(slot uint32, concerned func(*datapath.Half) bool) bool {
	h := t.half(slot)
	atomic.StoreUint64(&h.Tracked, noStamp)
	if concerned == nil {
		atomic.StoreUint32(&h.Generation, 0)
	}
	for range recording {
		if atomic.LoadUint32(&h.Locked) != 0 {
			continue // it may have seen that packet as the tracked one
		}
		if concerned == nil || concerned(h) {
			atomic.StoreUint32(&h.Generation, 0)
		}
		return true
	}
	return false
}

// leaves reports whether a half's packets leave to a MAC address.
func leaves(h *datapath.Half, to changes.MAC) bool {
	return to == changes.MAC(macOf(atomic.LoadUint64(&h.OutMacs)))
}

// comes reports whether they enter from it: those of a neighbour that has moved come
// from another one now.
func comes(h *datapath.Half, from changes.MAC) bool {
	first, end := atomic.LoadUint64(&h.InMacs), atomic.LoadUint32(&h.InMacsEnd)
	return from == changes.MAC(macOf(first>>48|uint64(end)<<16))
}

// inNetwork reports whether a connection has an address in a network.
func (t *Table) inNetwork(e *Conentry, network netip.Prefix) bool {
	orig, reply := t.tuples(e)
	for _, a := range [...]netip.AddrPort{orig.Src, orig.Dst, reply.Src, reply.Dst} {
		if network.Contains(a.Addr()) {
			return true
		}
	}
	return false
}
