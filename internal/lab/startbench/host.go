package startbench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

// host is the network namespace that stands for the machine: bridges and
// daemons are in it.
type host struct{ name string }

// openHost makes the namespace with an uplink.
func openHost(name string) (h *host, err error) {
	if err := netns.Create(name); err != nil {
		return nil, err
	}
	h = &host{name}
	err = netns.Do(name, func() error {
		for setting, value := range map[string]string{
			"ipv4/ip_forward": "1",
			// Neighbours of containers on links of their own, as the peer's.
			"ipv4/neigh/default/retrans_time_ms": "10",
			// Without it a bridge's port waits for another's address.
			"ipv6/conf/default/disable_ipv6": "1",
		} {
			err := os.WriteFile("/proc/sys/net/"+setting, []byte(value), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := upLink("lo"); err != nil {
			return err
		}
		device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: uplink}, PeerName: wire}
		if err := netlink.LinkAdd(device); err != nil {
			return fmt.Errorf("make %s: %w", uplink, err)
		}
		return errors.Join(upLink(uplink), upLink(wire))
	})
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func upLink(name string) error {
	device, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(device)
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// empty removes the devices that a mode has left, such as its bridge.
func (h *host) empty() error {
	return netns.Do(h.name, func() error {
		devices, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list the devices of %s: %w", h.name, err)
		}
		for _, d := range devices {
			if name := d.Attrs().Name; name != "lo" && name != uplink && name != wire {
				// One end of a pair takes the other along.
				if err := netlink.LinkDel(d); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
					if _, gone := netlink.LinkByName(name); gone == nil {
						return fmt.Errorf("remove %s of %s: %w", name, h.name, err)
					}
				}
			}
		}
		return nil
	})
}

// settlePatience is how long the kernel may take namespaces apart. It has one
// worker for those of the whole machine: others' are in the same queue.
const settlePatience = 3 * time.Minute

// settle returns when the kernel has taken all namespaces apart that nobody
// holds any more. It does so in batches, in the order in which they came: when
// a namespace of ours is gone, so are the devices of all before it; when a
// second one is gone, the first one's batch is over.
func (h *host) settle() error {
	for range 2 {
		if err := h.marker(); err != nil {
			return fmt.Errorf("wait for the kernel to remove namespaces: %w", err)
		}
	}
	return nil
}

// marker makes a namespace with one end of a pair, lets go of it and waits
// until the other end is gone.
func (h *host) marker() error {
	const device = "marker"
	inside, err := netns.New() // a mount would be copied by whoever starts then
	if err != nil {
		return err
	}
	err = netns.Do(h.name, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: device}, PeerName: device, PeerNamespace: netlink.NsFd(inside.Fd()),
		})
	})
	if err := errors.Join(err, inside.Close()); err != nil {
		return err
	}
	return netns.Do(h.name, func() error {
		for end := time.Now().Add(settlePatience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
			if _, err := netlink.LinkByName(device); errors.As(err, new(netlink.LinkNotFoundError)) {
				return nil
			}
		}
		return fmt.Errorf("%s is still there after %v", device, settlePatience)
	})
}

func (h *host) close() error {
	return errors.Join(h.empty(), netns.Delete(h.name))
}
