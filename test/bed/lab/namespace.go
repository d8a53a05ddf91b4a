package lab

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/sysctl"
)

// makeNode makes a node's namespace and opens a routing socket in it.
func (b *builder) makeNode(node string) error {
	err := netns.Create(b.namespace(node))
	if err != nil && !errors.Is(err, netns.ErrExist) {
		return err
	}
	if err == nil {
		b.undo(func() error { return netns.Delete(b.namespace(node)) })
	}
	return netns.Do(b.Node(node), func() error {
		settings := nodeSysctls
		if b.opts.IPv6 {
			settings = nodeSysctls6
		}
		if err := sysctl.Set(settings); err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("routing socket: %w", err)
		}
		b.nodes[node] = h
		return setUp(h, "lo")
	})
}

// setSysctls makes the current namespace a gateway.
func (b *builder) setSysctls() error {
	if err := sysctl.Set(deviceSysctls); err != nil || !b.opts.IPv6 {
		return err
	}
	return sysctl.Set(deviceSysctls6)
}
