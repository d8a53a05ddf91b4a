package topology

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/netns"
)

// move is a device of the machine that is in a node now.
type move struct {
	Node string `json:"node"`
	Dev  string `json:"dev"`  // its name in the node
	Host string `json:"host"` // its name on the machine
	Up   bool   `json:"up"`   // whether it was switched on there
}

// take moves a device of the machine into a node, under another name.
func (b *builder) take(e End, host, dev string) error {
	link, err := b.hostDevice(host)
	if err != nil {
		return err
	}
	if err := b.unused(link); err != nil {
		return err
	}
	m := move{Node: e.Node, Dev: dev, Host: host, Up: link.Attrs().Flags&net.FlagUp != 0}
	b.moves = append(b.moves, m)
	if err := b.write(); err != nil {
		return err
	}
	node, err := netns.Open(b.Path(e.Node))
	if err != nil {
		return err
	}
	defer node.Close()
	return carry(b.host, link, int(node.Fd()), b.nodes[e.Node], dev)
}

// unused refuses a device that the machine itself needs: what is moved loses
// its addresses.
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

// carry moves a device to another namespace. On the way it has a name that no
// other device has in either.
func carry(from *netlink.Handle, link netlink.Link, to int, there *netlink.Handle, name string) error {
	old := link.Attrs().Name
	between := fmt.Sprintf("scon%d", link.Attrs().Index)
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

// bringBack moves a device back to the machine.
func (l *Lab) bringBack(m move) error {
	host, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("routing socket: %w", err)
	}
	defer host.Close()
	home, err := netns.Open("")
	if err != nil {
		return err
	}
	defer home.Close()
	err = netns.Do(l.Path(m.Node), func() error {
		node, err := netlink.NewHandle()
		if err != nil {
			return fmt.Errorf("routing socket: %w", err)
		}
		defer node.Close()
		link, err := node.LinkByName(m.Dev)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil // it never came here, or has gone back
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", m.Dev, err)
		}
		return carry(node, link, int(home.Fd()), host, m.Host)
	})
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bring %s back: %w", m.Host, err)
	}
	if !m.Up {
		return nil
	}
	link, err := host.LinkByName(m.Host)
	if err != nil {
		return fmt.Errorf("bring %s back: %w", m.Host, err)
	}
	return host.LinkSetUp(link)
}
