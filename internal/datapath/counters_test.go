package datapath_test

import (
	"strings"
	"testing"
)

// A device whose number falls on another's place is refused, and told why.
func TestTrackSharedPlace(t *testing.T) {
	b := newBed(t)
	err := b.Track(b.port+1<<16, false)
	if err == nil || !strings.Contains(err.Error(), "make one of them anew") {
		t.Errorf("Track = %v", err)
	}
	b.Untrack(b.port)
	if err := b.Track(b.port+1<<16, false); err != nil {
		t.Errorf("the place is free: %v", err)
	}
}
