package composer

import (
	"testing"
	"time"
)

// A container that is alone has more candidates looked at than its own rate allows, as long
// as they take little time; others have theirs nevertheless. Candidates in vain get little.
func TestSpareCandidates(t *testing.T) {
	t.Parallel()
	const took = 50 * time.Microsecond
	const spare = int(sparePerSecond * float64(time.Second) / float64(took)) // a second
	for _, tc := range []struct {
		name   string
		inVain bool
		spare  int
	}{
		{"Conentries", false, spare},
		{"in vain", true, spare / spareInVain},
	} {
		c := New(Options{})
		greedy, other := c.account(1), c.account(2)
		now := time.Unix(0, 0)
		taken, others := 0, 0
		for range 10_000 {
			now = now.Add(time.Millisecond)
			for range 100 {
				c.sparing = false
				if !c.allow(greedy, now) {
					break
				}
				taken++
				c.spend(took, tc.inVain)
			}
			for range candidatesPerSecond / 1000 {
				if c.allow(other, now) {
					others++
				}
			}
		}
		least, most := 10*(candidatesPerSecond+tc.spare), 11*(candidatesPerSecond+tc.spare)+candidatesAtOnce
		if taken < least*99/100 || taken > most {
			t.Errorf("%s: %d candidates, want %d to %d", tc.name, taken, least, most)
		}
		if want := 10 * candidatesPerSecond; others < want {
			t.Errorf("%s: %d candidates of another container, want %d", tc.name, others, want)
		}
	}
}
