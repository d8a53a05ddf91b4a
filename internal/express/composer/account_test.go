package composer

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
)

// claimant is a container that wants candidates looked at.
type claimant struct {
	wants  int // in a millisecond
	inVain bool
	got    int
}

// ask has containers ask for some seconds, and returns the seconds that it took to look at
// what was allowed.
func ask(seconds int, took time.Duration, all ...*claimant) (spent float64) {
	c := New(Options{Table: new(contable.Table)})
	now := time.Unix(1000, 0)
	for range seconds * 1000 {
		now = now.Add(time.Millisecond)
		for i, a := range all {
			for range a.wants {
				if payers, why := c.allow(c.account(i), now); why == "" {
					a.got++
					spent += took.Seconds()
					payers.spend(took, a.inVain)
				}
			}
		}
	}
	return spent
}

// A container that is alone has more candidates looked at than its own rate allows, as long
// as they take little time. Candidates in vain get little.
func TestSpareCandidates(t *testing.T) {
	t.Parallel()
	const took, seconds = 50 * time.Microsecond, 10
	spare := (mostTime - candidatesPerSecond*took.Seconds()) * spareShare / (spareShare + 1) / took.Seconds() // a second
	for _, tc := range []struct {
		name   string
		inVain bool
		want   int
	}{
		{"Conentries", false, candidatesPerSecond + int(spare)},
		{"in vain", true, candidatesPerSecond + int(spare/spareInVain)},
	} {
		a := &claimant{wants: 20, inVain: tc.inVain}
		ask(seconds, took, a)
		least, most := seconds*tc.want, (seconds+1)*tc.want+candidatesAtOnce
		if a.got < least*99/100 || a.got > most || !tc.inVain && a.got < seconds*10_000 {
			t.Errorf("%s: %d candidates, want %d to %d", tc.name, a.got, least, most)
		}
	}
}

// Containers that want more than there is get equal parts, those that want less get all, and
// together they take no more of the loop's time than one alone, as long as their own rates do
// not add up to more.
func TestCandidatesAreShared(t *testing.T) {
	t.Parallel()
	const took, seconds = 50 * time.Microsecond, 10
	greedy, flood, modest, quiet := &claimant{wants: 20}, &claimant{wants: 100, inVain: true}, &claimant{wants: 2}, &claimant{wants: 1}
	greedier := &claimant{wants: 50}
	spent := ask(seconds, took, greedier, flood, greedy, modest, quiet)
	t.Logf("bound: of the loop's time %.2f s a second; candidates a second: %d of greedier, %d of greedy, %d of modest, %d of quiet, %d in vain",
		spent/seconds, greedier.got/seconds, greedy.got/seconds, modest.got/seconds, quiet.got/seconds, flood.got/seconds)
	if spent > (seconds+1)*mostTime {
		t.Errorf("%.2f s of %d were spent", spent, seconds)
	}
	if modest.got < 2000*seconds || quiet.got < 1000*seconds {
		t.Errorf("modest got %d, quiet %d", modest.got, quiet.got)
	}
	if greedy.got < greedier.got*9/10 || greedier.got < greedy.got*9/10 {
		t.Errorf("greedy ones got %d and %d", greedy.got, greedier.got)
	}
	if flood.got > greedy.got/2 {
		t.Errorf("in vain got %d", flood.got)
	}
	crowd := make([]*claimant, 20)
	for i := range crowd {
		crowd[i] = &claimant{wants: 10}
	}
	if spent := ask(seconds, took, crowd...); spent > (seconds+1)*mostTime+20*candidatesAtOnce*took.Seconds() {
		t.Errorf("%.2f s of %d were spent for 20 containers", spent, seconds)
	}
}
