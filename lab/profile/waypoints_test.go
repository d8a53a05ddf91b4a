package profile

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/internal/host/netns"
)

// loaded returns waypoints that are closed when the test ends.
func loaded(t *testing.T) *waypoints {
	t.Helper()
	needWaypoints(t)
	w, err := load(loading{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func TestSecondProfileIsRefused(t *testing.T) {
	first, second := loaded(t), loaded(t)
	err := netns.Scratch(func() error {
		if err := first.attachStations(row(2)); err != nil {
			return err
		}
		err := second.attachStations(row(2))
		if err == nil || !strings.Contains(err.Error(), "is another profile running?") {
			t.Errorf("error %v, want one about another profile", err)
		}
		if len(second.links) > 0 {
			t.Errorf("%d waypoints of the second are left", len(second.links))
		}
		return first.detach()
	})
	if err != nil {
		t.Error(err)
	}
}

// A process that lists the kernel's links holds each for a moment, also one that is
// closed meanwhile.
func TestLinksAreListed(t *testing.T) {
	w := loaded(t)
	err := netns.Scratch(func() error {
		if err := w.attachStations(row(2)); err != nil {
			return err
		}
		info, err := w.links[0].Info()
		if err != nil {
			return err
		}
		held, err := link.NewFromID(info.ID)
		if err != nil {
			return err
		}
		if err := w.detach(); err != nil {
			return err
		}
		time.AfterFunc(20*time.Millisecond, func() { held.Close() })
		return w.attachStations(row(2))
	})
	if err != nil {
		t.Error(err)
	}
}
