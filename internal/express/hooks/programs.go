package hooks

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// programs are the tcx programs of others on the path of containers' packets.
// The kernel does not announce them: they are polled once a second. SCON's own
// runs after them at an ingress and before them at an egress; where others have
// taken its place, it moves.
type programs struct {
	own  tcfilter.Own
	seen map[place]arrangement
	// contested says why devices are left to the programs of others.
	contested map[int]string
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

// maxMoves is how often SCON's program moves before the device is left to the
// others. After calm without a move the count starts again.
const (
	maxMoves = 5
	calm     = time.Minute
)

func newPrograms(own tcfilter.Own) programs {
	return programs{own: own, seen: make(map[place]arrangement), contested: make(map[int]string)}
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

// poll looks at places, each with SCON's hook there. changed says what is not as
// it was, "" if all is; moves are the hooks that have to move.
func (p *programs) poll(places map[place]*datapath.Hook, isTCX bool, now time.Time) (changed string, moves []datapath.Attached) {
	maps.DeleteFunc(p.seen, func(at place, _ arrangement) bool {
		_, there := places[at]
		return !there
	})
	for at, hook := range places {
		seen := p.seen[at]
		current, same, err := p.own.Arranged(at.ifindex, at.at, seen.revision)
		if same || err != nil { // removed devices are announced
			continue
		}
		if foreign := names(current.Foreign()); foreign != seen.foreign {
			changed = fmt.Sprintf("programs at device %d: %s", at.ifindex, cmp.Or(foreign, "none"))
			seen.foreign = foreign
		}
		if hook != nil && !current.Own && isTCX {
			changed = fmt.Sprintf("SCON's program is gone from device %d", at.ifindex)
		}
		switch ousters := current.Ousters(at.at); {
		case hook == nil && seen.foreign == "":
			delete(p.contested, at.ifindex)
		case hook == nil || len(ousters) == 0:
		case seen.mayMove(now):
			moves = append(moves, datapath.Attached{Hook: *hook, Ifindex: at.ifindex})
		default:
			p.contested[at.ifindex] = "the place of SCON's program is taken again and again by " + names(ousters)
			changed = "a contested place"
		}
		seen.revision = current.Revision
		p.seen[at] = seen
	}
	return changed, moves
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
