package pipe

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// A container with mostHung closes that hang is refused until one has ended, others are not.
func TestHungIsPerContainer(t *testing.T) {
	t.Parallel()
	h := hung{of: make(map[quota.Account]int)}
	one, other := quota.Owner{Netns: 1, Cgroup: "/one"}, quota.Owner{Netns: 2, Cgroup: "/other"}
	for n := range mostHung {
		if err := h.has(one); err != nil {
			t.Fatalf("with %d: %v", n, err)
		}
		if most := h.change(one, 1); most != (n == mostHung-1) {
			t.Errorf("with %d: %v", n+1, most)
		}
	}
	if err := h.has(one); !errors.Is(err, unix.EBUSY) {
		t.Errorf("%v, want %v", err, unix.EBUSY)
	}
	if err := h.has(other); err != nil {
		t.Error(err)
	}
	h.change(one, -1)
	if err := h.has(one); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	for range mostHung - 1 {
		h.change(one, -1)
	}
	if len(h.of) != 0 {
		t.Errorf("left: %v", h.of)
	}
}
