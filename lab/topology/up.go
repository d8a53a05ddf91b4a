package topology

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/sysctl"
)

// Options are the options of Up.
type Options struct {
	// Dir has the records of topologies that are up; "" means DefaultDir.
	Dir string
	// Progress is called after each node and link; may be nil.
	Progress func(done, total int)
}

// nodeSysctls are the sysctls of every node: IPv4 forwarding by routes alone, and no
// neighbour discovery. They are set before the links are made, since new links copy
// conf/default.
var nodeSysctls = []sysctl.Setting{
	{Name: "net/ipv6/conf/all/disable_ipv6", Value: "1"},
	{Name: "net/ipv6/conf/default/disable_ipv6", Value: "1"},
	{Name: "net/ipv4/ip_forward", Value: "1"},
	{Name: "net/ipv4/conf/all/rp_filter", Value: "0"},
	{Name: "net/ipv4/conf/default/rp_filter", Value: "0"},
}

// builder brings a topology up.
type builder struct {
	*Lab
	ctx      context.Context
	progress func(done, total int)
	done     int
	host     *netlink.Handle            // socket in the caller's namespace
	nodes    map[string]*netlink.Handle // sockets in the nodes
	indices  map[string]int             // of devices, by NODE:DEVICE
}

// Up builds a topology. The error wraps ErrUp if one of that name is up already;
// after any other error Up has removed what it built.
func Up(ctx context.Context, t *Topology, o Options) (l *Lab, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("build the topology: network namespaces need root; try sudo")
	}
	if err := t.checkCPUs(); err != nil {
		return nil, fmt.Errorf("build the topology: %w", err)
	}
	b := &builder{
		Lab:      &Lab{Topology: t, dir: withDefault(o.Dir)},
		ctx:      ctx,
		progress: o.Progress,
		nodes:    map[string]*netlink.Handle{},
		indices:  map[string]int{},
	}
	if err := b.checkDocker(ctx); err != nil {
		return nil, fmt.Errorf("build the topology: %w", err)
	}
	if err := b.claim(); err != nil {
		return nil, err
	}
	defer func() {
		b.closeHandles()
		if err != nil {
			err = errors.Join(fmt.Errorf("build the topology: %w", err), b.Close())
		}
	}()
	if b.host, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("routing socket: %w", err)
	}
	if err := b.build(); err != nil {
		return nil, err
	}
	return b.Lab, nil
}

// checkCPUs refuses CPUs that this machine lacks.
func (t *Topology) checkCPUs() error {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return fmt.Errorf("list the CPUs: %w", err)
	}
	list := strings.TrimSpace(string(text))
	online, err := parseCPUs(list)
	if err != nil {
		return fmt.Errorf("list the CPUs: %w", err)
	}
	for _, n := range t.Nodes {
		for _, cpu := range n.CPUs {
			if !slices.Contains(online, cpu) {
				return fmt.Errorf("node %s: its cpu-set has CPU %d, this machine has %s", n.Name, cpu, list)
			}
		}
	}
	return nil
}

// build makes nodes, links and routes.
func (b *builder) build() error {
	if err := b.startContainers(); err != nil {
		return err
	}
	for _, n := range b.Nodes {
		if err := b.makeNode(n); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		if err := b.step(); err != nil {
			return err
		}
	}
	for i, l := range b.Links {
		if err := b.makeLink(l); err != nil {
			return fmt.Errorf("link %d (%s): %w", i, l, err)
		}
		if err := b.step(); err != nil {
			return err
		}
	}
	return b.route()
}

// step reports the progress, and returns an error if the context has ended.
func (b *builder) step() error {
	b.done++
	if b.progress != nil {
		b.progress(b.done, len(b.Nodes)+len(b.Links))
	}
	return b.ctx.Err()
}

// makeNode makes a node's namespace, or names a container's namespace, and opens a
// netlink socket in it.
func (b *builder) makeNode(n Node) (err error) {
	if n.Kind == Docker {
		err = b.nameContainer(n)
	} else {
		err = netns.Create(b.namespace(n.Name))
	}
	if err != nil {
		return err
	}
	return netns.Do(b.Path(n.Name), func() error {
		if err := sysctl.Set(nodeSysctls); err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("routing socket: %w", err)
		}
		b.nodes[n.Name] = h
		lo, err := h.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo: %w", err)
		}
		if err := h.AddrAdd(lo, hostAddr(b.Addr(n.Name))); err != nil {
			return fmt.Errorf("address %s: %w", b.Addr(n.Name), err)
		}
		return h.LinkSetUp(lo)
	})
}

// closeHandles closes the sockets in the nodes.
func (b *builder) closeHandles() {
	for _, h := range b.nodes {
		h.Close()
	}
	if b.host != nil {
		b.host.Close()
	}
}
