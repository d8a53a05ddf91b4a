package devices

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// inHost calls fn with the Host of a namespace.
func inHost(t *testing.T, host string, fn func(*Host)) {
	t.Helper()
	nstest.Do(t, host, func() {
		h, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		fn(h)
	})
}

// A bridge that is there is used, unless it is to be new. Another device of its name stays as it is.
func TestMakeBridge(t *testing.T) {
	host := nstest.New(t)
	nstest.Run(t, host, "ip link add other type veth peer name peer")
	inHost(t, host, func(h *Host) {
		for range 2 {
			if err := h.MakeBridge(Bridge{Name: "br0"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.MakeBridge(Bridge{Name: "br0", New: true}); !errors.Is(err, unix.EEXIST) {
			t.Errorf("a bridge that is to be new: %v", err)
		}
		if err := h.MakeBridge(Bridge{Name: "other"}); err == nil || !strings.Contains(err.Error(), "device other is a veth, not a bridge") {
			t.Errorf("a device that is no bridge: %v", err)
		}
	})
	if got := nstest.Run(t, host, "ip -o link show other"); strings.Contains(got, ",UP") {
		t.Errorf("the other device has changed: %s", got)
	}
}

// A port that cannot be set up is removed, and the error has its name.
func TestMakePortFails(t *testing.T) {
	host := nstest.New(t)
	inHost(t, host, func(h *Host) {
		if err := h.MakeBridge(Bridge{Name: "br0"}); err != nil {
			t.Fatal(err)
		}
		err := h.MakePort(Port{Bridge: "br0", Host: "port0", Inner: "inner0", Alias: strings.Repeat("x", 300)})
		if err == nil || !strings.Contains(err.Error(), "device port0") {
			t.Errorf("an alias that is too long: %v", err)
		}
	})
	if left := nstest.Run(t, host, "ip -o link"); strings.Contains(left, "port0") || strings.Contains(left, "inner0") {
		t.Errorf("left: %s", left)
	}
}
