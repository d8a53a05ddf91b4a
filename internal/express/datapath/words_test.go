package datapath

import (
	"maps"
	"slices"
	"testing"

	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/test/bed/check"
)

// Each reason of the programs has its words for the user, and no others have.
func TestReasonsHaveWords(t *testing.T) {
	want := slices.Sorted(slices.Values(reasonNames[1:]))
	got := slices.Sorted(maps.Keys(live.Reasons))
	if d := check.Diff(want, got); d != "" {
		t.Error(d)
	}
}
