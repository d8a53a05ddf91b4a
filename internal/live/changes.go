package live

import (
	"fmt"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/api"
)

// Kinds of a Change.
const (
	ChangeDaemon     = "daemon"     // another daemon answers
	ChangeState      = "state"      // of the express path
	ChangeRules      = "rules"      // of the network
	ChangeGeneration = "generation" // every decision is confirmed by a regular packet
	ChangeContainers = "containers" // one came or went
)

// Change is something that has changed between two snapshots, and its effect on
// connections.
type Change struct {
	At     time.Time `json:"at"`     // of the later snapshot
	Kind   string    `json:"kind"`   // of the change
	What   string    `json:"what"`   // what has changed
	Effect string    `json:"effect"` // what that did to connections
}

func changes(was, is Snapshot) []Change {
	all := []Change{}
	add := func(kind, what, effect string) {
		all = append(all, Change{is.At, kind, what, effect})
	}
	a, b := &was.Status, &is.Status
	same := a.PID == b.PID
	if !same {
		add(ChangeDaemon, fmt.Sprintf("another daemon answers: pid %d, scon %s", b.PID, b.Version), fmt.Sprintf("%d connections are express or composing", b.Totals.Entries))
	}
	if a.State != b.State {
		add(ChangeState, a.State+" -> "+b.State, stateEffect(b))
	}
	if same && a.Rules != b.Rules {
		add(ChangeRules, rulesChanged(a.Rules, b.Rules), rulesEffect(a.Rules, b.Rules))
	}
	if same && a.Generation != b.Generation {
		add(ChangeGeneration, fmt.Sprintf("generation %d -> %d", a.Generation, b.Generation), "each direction of every connection was confirmed by a regular packet")
	}
	for _, c := range missing(b.Containers, a.Containers) {
		add(ChangeContainers, c+" came", "its connections go express after their first packets")
	}
	for _, c := range missing(a.Containers, b.Containers) {
		add(ChangeContainers, c+" went", "its connections are removed")
	}
	return all
}

func stateEffect(s *api.Status) string {
	switch {
	case s.State == api.StateActive:
		return "packets of known connections go express"
	case s.Why != "":
		return "every packet goes regular: " + s.Why
	default:
		return "every packet goes regular"
	}
}

func rulesChanged(a, b api.Rules) string {
	what := "rules changed"
	if a.Generation != b.Generation {
		what = fmt.Sprintf("rules changed: nftables generation %d -> %d", a.Generation, b.Generation)
	}
	if b.Read != a.Read {
		what += ", all rules read again"
	}
	return what
}

func rulesEffect(a, b api.Rules) string {
	return fmt.Sprintf("%d connections retired, everything regular for %.1f ms", b.Retired-a.Retired, 1000*(b.Unknown-a.Unknown))
}

// missing returns the names of the containers of one list that another one does not have.
// One that was identified in between is the same.
func missing(of, in []api.Container) (names []string) {
	ids := make(map[string][]string, len(in)) // by device
	for i := range in {
		ids[in[i].Dev] = append(ids[in[i].Dev], in[i].ID)
	}
	for i := range of {
		c := &of[i]
		same := func(id string) bool { return id == c.ID || id == "" || c.ID == "" }
		if !slices.ContainsFunc(ids[c.Dev], same) {
			names = append(names, NameOf(c))
		}
	}
	return names
}
