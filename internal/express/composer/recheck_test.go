package composer

import (
	"testing"

	"github.com/scon-project/scon/internal/express/contable"
)

// However many Conentries are in doubt, few are asked for between two beats,
// those in doubt once and first, and none is left out.
func TestRecheckNext(t *testing.T) {
	t.Parallel()
	const doubted, waiting = 3*polledAtOnce + 7, 5
	var u recheck
	for range doubted {
		u.doubted = append(u.doubted, new(contable.Conentry))
	}
	for range waiting {
		u.waiting = append(u.waiting, new(contable.Conentry))
	}
	gone := new(contable.Conentry)
	u.doubted, u.waiting = append(u.doubted, gone), append(u.waiting, gone)
	asked := make(map[*contable.Conentry]int)
	for range 4 {
		once, others := u.next(func(e *contable.Conentry) bool { return e != gone })
		if n := len(once) + len(others); n > polledAtOnce {
			t.Errorf("%d at once", n)
		}
		if len(others) > 0 && len(u.doubted) > 0 {
			t.Errorf("%d in doubt have to wait", len(u.doubted))
		}
		for _, e := range append(once, others...) {
			asked[e]++
		}
	}
	for _, n := range asked {
		if n != 1 {
			t.Errorf("asked for %d times", n)
		}
	}
	if len(asked) != doubted+waiting {
		t.Errorf("%d asked for, want %d", len(asked), doubted+waiting)
	}
}
