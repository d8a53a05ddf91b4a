package datapath_test

import (
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/express/datapath"
)

// A device whose number falls on another's place is refused, and told why.
func TestTrackSharedPlace(t *testing.T) {
	b := newBed(t)
	err := b.Track(b.port+1<<16, datapath.Delivery{})
	if err == nil || !strings.Contains(err.Error(), "make one of them anew") {
		t.Errorf("Track = %v", err)
	}
	b.Untrack(b.port)
	if err := b.Track(b.port+1<<16, datapath.Delivery{}); err != nil {
		t.Errorf("the place is free: %v", err)
	}
}
