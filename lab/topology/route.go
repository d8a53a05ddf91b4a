package topology

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flowPriority is the priority of the flows' rules, ahead of the kernel's rule for
// the main table.
const flowPriority = 1000

// route adds routes between all nodes along the shortest paths, and the routes of
// the flows.
func (b *builder) route() error {
	g := b.graph()
	behind := map[string]map[string][]string{} // destinations by node and next hop
	for _, to := range b.Nodes {
		for node, neighbour := range g.towards(to.Name) {
			if behind[node] == nil {
				behind[node] = map[string][]string{}
			}
			if node != to.Name {
				behind[node][neighbour] = append(behind[node][neighbour], to.Name)
			}
		}
	}
	for node, behind := range behind {
		if err := b.routeNode(g, node, behind); err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
		if err := b.ctx.Err(); err != nil {
			return err
		}
	}
	for _, f := range b.Flows {
		if err := b.routeFlow(g, f); err != nil {
			return fmt.Errorf("flow to port %d: %w", f.Port, err)
		}
	}
	return nil
}

// routeNode adds the routes of a node: a default route by the neighbour that
// leads to most nodes, and one route for each node behind another neighbour.
func (b *builder) routeNode(g graph, node string, behind map[string][]string) error {
	most := ""
	for neighbour, nodes := range behind {
		if len(nodes) > len(behind[most]) || len(nodes) == len(behind[most]) && neighbour < most {
			most = neighbour
		}
	}
	for neighbour, nodes := range behind {
		routes := []*net.IPNet{anywhere}
		if neighbour != most {
			routes = nil
			for _, to := range nodes {
				routes = append(routes, hostAddr(b.Addr(to)).IPNet)
			}
		}
		for _, to := range routes {
			err := b.routeVia(g, node, neighbour, netlink.Route{Dst: to, Src: b.Addr(node).AsSlice()})
			if err != nil {
				return fmt.Errorf("route to %s: %w", to, err)
			}
		}
	}
	return nil
}

// anywhere is the destination of a default route.
var anywhere = ipNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0))

// routeVia adds a route of a node with a neighbour as next hop.
func (b *builder) routeVia(g graph, node, neighbour string, r netlink.Route) error {
	h, _ := g.segment(node, neighbour)
	index, err := b.ifindex(node, h.dev)
	if err != nil {
		return err
	}
	r.LinkIndex, r.Gw = index, h.via.AsSlice()
	return b.nodes[node].RouteAdd(&r)
}

// ifindex returns the index of a device in a node.
func (b *builder) ifindex(node, dev string) (int, error) {
	name := node + ":" + dev
	if index, known := b.indices[name]; known {
		return index, nil
	}
	link, err := b.nodes[node].LinkByName(dev)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", name, err)
	}
	b.indices[name] = link.Attrs().Index
	return b.indices[name], nil
}

// routeFlow routes a UDP destination port along a path. Each node but the last gets
// a rule and a routing table for the port.
func (b *builder) routeFlow(g graph, f Flow) error {
	for i, node := range f.Path[:len(f.Path)-1] {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table = netlink.FAMILY_V4, flowPriority, table(f.Port)
		rule.IPProto = unix.IPPROTO_UDP
		rule.Dport = netlink.NewRulePortRange(f.Port, f.Port)
		if err := b.nodes[node].RuleAdd(rule); err != nil {
			return fmt.Errorf("node %s: add a rule: %w", node, err)
		}
		err := b.routeVia(g, node, f.Path[i+1], netlink.Route{
			Table: table(f.Port),
			Dst:   anywhere,
			Src:   b.Addr(node).AsSlice(),
		})
		if err != nil {
			return fmt.Errorf("node %s: add a route: %w", node, err)
		}
	}
	return nil
}

// table returns the number of a flow's routing table, above those of the kernel.
func table(port uint16) int { return 1<<16 + int(port) }
