package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// segment is a link, as seen from one of its nodes.
type segment struct {
	to  string
	dev string     // the node's device
	via netip.Addr // the neighbour's address
	// delay is the link's maximum delay.
	delay time.Duration
}

// graph has the segments of each node, in the order of the links.
type graph map[string][]segment

func (t *Topology) graph() graph {
	g := graph{}
	for _, l := range t.Links {
		if len(l.Ends) < 2 {
			continue
		}
		for i, end := range l.Ends {
			other := l.Ends[1-i]
			g[end.Node] = append(g[end.Node], segment{other.Node, end.Interface, other.IPv4.Addr(), l.Delay + l.Jitter})
		}
	}
	return g
}

// segment returns the first segment from a node to a neighbour.
func (g graph) segment(node, neighbour string) (segment, bool) {
	i := slices.IndexFunc(g[node], func(s segment) bool { return s.to == neighbour })
	if i < 0 {
		return segment{}, false
	}
	return g[node][i], true
}

// Delay returns the maximum delay of a packet by the links of a path.
func (t *Topology) Delay(path []string) (longest time.Duration) {
	g := t.graph()
	for i := range path[1:] {
		if h, ok := g.segment(path[i], path[i+1]); ok {
			longest += h.delay
		}
	}
	return longest
}

// towards returns each node's neighbour on the shortest path to a root. Nodes without
// a path are not in the result.
func (g graph) towards(root string) map[string]string {
	next := map[string]string{root: root}
	for queue := []string{root}; len(queue) > 0; queue = queue[1:] {
		for _, h := range g[queue[0]] {
			if _, known := next[h.to]; !known {
				next[h.to] = queue[0]
				queue = append(queue, h.to)
			}
		}
	}
	return next
}

// expand completes a path with the nodes between those given.
func (g graph) expand(path []string) ([]string, error) {
	whole := []string{path[0]}
	for _, to := range path[1:] {
		if to == whole[len(whole)-1] {
			return nil, twice(to)
		}
		next := g.towards(to)
		for at := whole[len(whole)-1]; at != to; {
			at = next[at]
			if at == "" {
				return nil, fmt.Errorf("no links lead from %q to %q", whole[len(whole)-1], to)
			}
			if slices.Contains(whole, at) {
				return nil, twice(at)
			}
			whole = append(whole, at)
		}
	}
	return whole, nil
}

func twice(node string) error {
	return fmt.Errorf("leads to %q twice: each node routes a port to one neighbour", node)
}
