package topology

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
)

// move records the move of a device of the host into a node.
type move struct {
	Node string `json:"node"`
	Dev  string `json:"dev"`  // name in the node
	Host string `json:"host"` // name on the host
	// Between is a temporary name during the move, unique in both namespaces.
	Between string `json:"between"`
	// Up is whether the device was up on the host, MTU its MTU there.
	Up  bool `json:"up"`
	MTU int  `json:"mtu"`
}

// take moves a device of the host into a node and renames it.
func (b *builder) take(e End, host, dev string) error {
	link, err := b.hostDevice(host)
	if err != nil {
		return err
	}
	if err := b.unused(link); err != nil {
		return err
	}
	m := move{
		Node: e.Node, Dev: dev, Host: host, Between: fmt.Sprintf("scon%d", link.Attrs().Index),
		Up: link.Attrs().Flags&net.FlagUp != 0, MTU: link.Attrs().MTU,
	}
	b.moves = append(b.moves, m)
	if err := b.write(); err != nil {
		return err
	}
	node, err := netns.Open(b.Path(e.Node))
	if err != nil {
		return err
	}
	defer node.Close()
	return carry(b.host, link, m.Between, int(node.Fd()), b.nodes[e.Node], dev)
}

// unused refuses a device that the host uses, since a move removes the device's
// addresses.
func (b *builder) unused(link netlink.Link) error {
	name := link.Attrs().Name
	if link.Attrs().MasterIndex != 0 {
		return fmt.Errorf("%s is a port of a bridge or bond of this machine: take it out there first", name)
	}
	addrs, err := b.host.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	if len(addrs) > 0 {
		return fmt.Errorf("%s is in use with the address %s: take a device without one", name, addrs[0].IPNet)
	}
	return nil
}

// carry moves a device to another namespace, with a temporary name.
func carry(from *netlink.Handle, link netlink.Link, between string, to int, there *netlink.Handle, name string) error {
	old := link.Attrs().Name
	if err := from.LinkSetDown(link); err != nil {
		return fmt.Errorf("switch %s off: %w", old, err)
	}
	if err := from.LinkSetName(link, between); err != nil {
		return fmt.Errorf("rename %s: %w", old, err)
	}
	if err := from.LinkSetNsFd(link, to); err != nil {
		return errors.Join(fmt.Errorf("move %s to another namespace: %w", old, err), from.LinkSetName(link, old))
	}
	moved, err := there.LinkByName(between)
	if err != nil {
		return fmt.Errorf("find %s after its move: %w", old, err)
	}
	if err := there.LinkSetName(moved, name); err != nil {
		return fmt.Errorf("rename %s to %s: %w", old, name, err)
	}
	return nil
}

// bringBack moves a device back to the host and restores its state, at whatever step
// the move was interrupted.
func (l *Lab) bringBack(m move) error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("routing socket: %w", err)
	}
	defer host.Close()
	err = l.bringOut(m, host)
	if err == nil {
		err = m.settle(host)
	}
	if err != nil {
		return fmt.Errorf("bring %s back: %w", m.Host, err)
	}
	return nil
}

// bringOut moves the device out of the node, if it is in it.
func (l *Lab) bringOut(m move, host *netlink.Handle) error {
	home, err := netns.Open("")
	if err != nil {
		return err
	}
	defer home.Close()
	err = netns.Do(l.Path(m.Node), func() error {
		node, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("routing socket: %w", err)
		}
		defer node.Close()
		link, err := findEither(node, m.Dev, m.Between)
		if link == nil || err != nil {
			return err
		}
		return carry(node, link, m.Between, int(home.Fd()), host, m.Host)
	})
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) {
		return nil
	}
	return err
}

// settle restores name, MTU and state of the device, which is on the host. A missing
// device is no error.
func (m move) settle(host *netlink.Handle) error {
	link, err := findEither(host, m.Between, m.Host)
	if link == nil || err != nil {
		return err
	}
	if link.Attrs().Name != m.Host {
		if err := host.LinkSetName(link, m.Host); err != nil {
			return fmt.Errorf("rename %s: %w", m.Between, err)
		}
	}
	if m.MTU != 0 && link.Attrs().MTU != m.MTU {
		if err := host.LinkSetMTU(link, m.MTU); err != nil {
			return fmt.Errorf("set the MTU to %d: %w", m.MTU, err)
		}
	}
	if !m.Up {
		return nil
	}
	if err := host.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring it up: %w", err)
	}
	return nil
}

// findEither returns the device of the first name, else that of the second, else
// nil.
func findEither(h *netlink.Handle, first, second string) (netlink.Link, error) {
	for _, name := range []string{first, second} {
		link, err := h.LinkByName(name)
		if err == nil {
			return link, nil
		}
		if !errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil, fmt.Errorf("find %s: %w", name, err)
		}
	}
	return nil, nil
}
