package topology

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoNetem is wrapped when the kernel cannot delay or lose packets.
var ErrNoNetem = errors.New("this kernel has no netem (CONFIG_NET_SCH_NETEM): leave delay, jitter and loss out")

// netem keeps delays in units of 64 ns, of which it can count 2^32.
const (
	minDelay = time.Microsecond
	maxDelay = 4 * time.Minute
)

// queue is how many packets may be on their way at a time, more than ever are: the
// kernel's own 1000 would lose some that the file does not say.
const queue = 4 << 20

// impair delays and loses what a device sends.
func impair(h *netlink.Handle, link netlink.Link, l Link) error {
	err := h.QdiscAdd(netlink.NewNetem(netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index,
		Parent:    netlink.HANDLE_ROOT,
		Handle:    netlink.MakeHandle(1, 0),
	}, netlink.NetemQdiscAttrs{
		Latency: uint32(l.Delay.Microseconds()),
		Jitter:  uint32(l.Jitter.Microseconds()),
		Loss:    float32(l.Loss),
		Limit:   queue,
	}))
	if errors.Is(err, unix.ENOENT) {
		return ErrNoNetem
	}
	if err != nil {
		return fmt.Errorf("add netem: %w", err)
	}
	return nil
}
