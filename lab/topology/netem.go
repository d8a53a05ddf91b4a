package topology

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoNetem is wrapped if the kernel has no netem, which delays and drops packets.
var ErrNoNetem = errors.New("this kernel has no netem (CONFIG_NET_SCH_NETEM): leave delay, jitter and loss out")

// netem stores delays in units of 64 ns, as 32-bit numbers.
const (
	minDelay = time.Microsecond
	maxDelay = 4 * time.Minute
)

// queue is netem's limit of packets, larger than any number in flight. The default
// of 1000 would drop packets without loss in the file.
const queue = 4 << 20

// impair adds delay and loss to the packets that a device sends.
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
