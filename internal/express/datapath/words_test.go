package datapath

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/scon-project/scon/internal/live"
)

// Each reason of the programs has its words for the user, and no others have.
func TestReasonsHaveWords(t *testing.T) {
	want := slices.Sorted(slices.Values(reasonNames[1:]))
	got := slices.Sorted(maps.Keys(live.Reasons))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
