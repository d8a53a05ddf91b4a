package datapath_test

import (
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/express/datapath"
)

// A device that shares another's entry is refused; the error says why.
func TestTrackSharedPlace(t *testing.T) {
	b := newBed(t)
	err := b.Track(b.port+1<<16, datapath.Delivery{})
	if err == nil || !strings.Contains(err.Error(), "create one of them again") {
		t.Errorf("Track = %v", err)
	}
	b.Untrack(b.port)
	if err := b.Track(b.port+1<<16, datapath.Delivery{}); err != nil {
		t.Errorf("the entry is free: %v", err)
	}
}
