package startbench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
)

// host is the network namespace that stands for the host: it has the bridges and the
// daemons.
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
			// Resolve neighbours on the containers' own links as fast as the peer does.
			"ipv4/neigh/default/retrans_time_ms": "10",
			// Otherwise a bridge port waits for duplicate address detection.
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

// empty removes the devices that a mode left, such as its bridge.
func (h *host) empty() error {
	return netns.Do(h.name, func() error {
		devices, err := netdev.List()
		if err != nil {
			return fmt.Errorf("list the devices of %s: %w", h.name, err)
		}
		for _, d := range devices {
			if name := d.Attrs().Name; name != "lo" && name != uplink && name != wire {
				// Removing one end of a pair removes the other.
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

// settlePatience is the timeout of the removal of namespaces. The kernel has one
// worker for all namespaces of the machine: those of other processes are in the
// same queue.
const settlePatience = 3 * time.Minute

// settle waits until the kernel has removed all unreferenced namespaces. The kernel
// removes them in batches, in order of release: when a namespace of the bench is
// gone, the devices of all earlier ones are gone; when a second one is gone, the
// batch of the first has finished.
func (h *host) settle() error {
	for range 2 {
		if err := h.marker(); err != nil {
			return fmt.Errorf("wait for the kernel to remove namespaces: %w", err)
		}
	}
	return nil
}

// marker makes a namespace with one end of a veth pair, releases it and waits until
// the other end is gone.
func (h *host) marker() error {
	const device = "marker"
	inside, err := netns.New() // no bind mount: a process with a new mount namespace would copy it
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
		return fmt.Errorf("%s still exists after %v", device, settlePatience)
	})
}

func (h *host) close() error {
	return errors.Join(h.empty(), netns.Delete(h.name))
}
