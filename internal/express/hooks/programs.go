package hooks

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// programs are the tcx programs of others on the path of containers' packets.
// The kernel does not announce them: they are polled once a second. SCON's own
// runs after them at an ingress and before them at an egress; where others have
// taken its place, it moves, and where they have detached it, it comes back.
type programs struct {
	// arranged reads the programs at a place, as tcfilter.Own.Arranged does.
	arranged func(ifindex int, at ebpf.AttachType, known uint64) (tcfilter.Arrangement, bool, error)
	log      *slog.Logger
	seen     map[place]arrangement
	// left says why places are left to the programs of others. The devices stay
	// regular.
	left map[place]string
}

// place is one side of a device, where programs run.
type place struct {
	ifindex int
	at      ebpf.AttachType
}

// arrangement is what was last seen at a place.
type arrangement struct {
	revision uint64
	foreign  string
	moves    int // of SCON's program, each within calm of the one before
	moved    time.Time
}

// unreadable is the revision of a place where programs could not be read. The
// kernel's never get there.
const unreadable = math.MaxUint64

// maxMoves is how often SCON's program moves before the device is left to the
// others. After calm without a move the count starts again.
const (
	maxMoves = 5
	calm     = time.Minute
)

// newPrograms takes what returns SCON's programs.
func newPrograms(own func() tcfilter.Own, log *slog.Logger) programs {
	arranged := func(ifindex int, at ebpf.AttachType, known uint64) (tcfilter.Arrangement, bool, error) {
		return own().Arranged(ifindex, at, known)
	}
	return programs{arranged: arranged, log: log, seen: make(map[place]arrangement), left: make(map[place]string)}
}

// why returns why a device is left to the programs of others, "" if it is not.
func (p *programs) why(ifindex int) string {
	return cmp.Or(p.left[place{ifindex, ebpf.AttachTCXIngress}], p.left[place{ifindex, ebpf.AttachTCXEgress}])
}

// addPlaces adds both sides of a device, with SCON's hooks there: none, or one at
// the ingress and one at the egress.
func addPlaces(all map[place]*datapath.Hook, ifindex int, hooks []datapath.Hook) {
	ingress, egress := place{ifindex, ebpf.AttachTCXIngress}, place{ifindex, ebpf.AttachTCXEgress}
	all[ingress], all[egress] = nil, nil
	if len(hooks) == 2 {
		all[ingress], all[egress] = &hooks[0], &hooks[1]
	}
}

// poll reads the programs at places, each with SCON's hook there. changed says
// what is not as it was, "" if all is; moves are the hooks that have to move.
func (p *programs) poll(places map[place]*datapath.Hook, isTCX bool, now time.Time) (changed string, moves []datapath.Attached) {
	maps.DeleteFunc(p.seen, func(at place, _ arrangement) bool {
		_, there := places[at]
		return !there
	})
	for at, hook := range places {
		current, same, err := p.arranged(at.ifindex, at.at, p.seen[at].revision)
		switch {
		case errors.Is(err, unix.ENODEV):
			p.log.Debug(deviceRemoved, "ifindex", at.ifindex, "error", err)
			delete(p.left, at)
		case err != nil:
			changed = cmp.Or(p.leaveUnreadable(at, err), changed)
		case same && hook == nil && p.left[at] != "" && p.seen[at].foreign == "" && now.Sub(p.seen[at].moved) > calm:
			delete(p.left, at) // whoever detached SCON's program has stopped, perhaps
			changed = cmp.Or(changed, fmt.Sprintf("device %d is hooked again", at.ifindex))
		case !same:
			change, mustMove := p.update(at, hook, current, isTCX, now)
			changed = cmp.Or(change, changed)
			if mustMove {
				moves = append(moves, datapath.Attached{Hook: *hook, Ifindex: at.ifindex})
			}
		}
	}
	return changed, moves
}

// leaveUnreadable leaves a place to the programs of others until they can be read
// again: what express packets would skip is not known.
func (p *programs) leaveUnreadable(at place, err error) (changed string) {
	why := err.Error()
	if p.left[at] == why {
		return ""
	}
	p.log.Error("reading the programs at a device; its packets stay regular", "ifindex", at.ifindex, "error", err)
	p.left[at] = why
	p.seen[at] = arrangement{revision: unreadable, foreign: why}
	return why
}

// update takes up what has changed at a place, and reports whether SCON's program
// has to move.
func (p *programs) update(at place, hook *datapath.Hook, current tcfilter.Arrangement, isTCX bool, now time.Time) (changed string, move bool) {
	seen := p.seen[at]
	if seen.revision == unreadable {
		delete(p.left, at)
	}
	if foreign := names(current.Foreign()); foreign != seen.foreign {
		changed = fmt.Sprintf("programs at device %d: %s", at.ifindex, cmp.Or(foreign, "none"))
		seen.foreign = foreign
	}
	gone := hook != nil && !current.Own && isTCX
	if gone {
		changed = fmt.Sprintf("SCON's program is gone from device %d", at.ifindex)
	}
	switch ousters := current.Ousters(at.at); {
	case hook == nil && seen.foreign == "":
		delete(p.left, at)
	case hook == nil || len(ousters) == 0 && !gone:
	case seen.mayMove(now):
		move = true
	case gone:
		p.left[at] = "SCON's program is detached again and again"
	default:
		p.left[at] = "the place of SCON's program is taken again and again by " + names(ousters)
		changed = "a contested place"
	}
	seen.revision = current.Revision
	p.seen[at] = seen
	return changed, move
}

// mayMove counts a move, if there have not been too many.
func (a *arrangement) mayMove(now time.Time) bool {
	if now.Sub(a.moved) > calm {
		a.moves = 0
	}
	a.moves, a.moved = a.moves+1, now
	return a.moves <= maxMoves
}

// names lists programs.
func names(all []tcfilter.Program) string {
	var words []string
	for _, p := range all {
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}
