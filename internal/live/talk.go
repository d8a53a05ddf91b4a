package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/scon-project/scon/internal/api"
)

// mostTotals bounds each list of totals, and each side of the map.
const mostTotals = 12

// Total is what all connections with something in common send in both directions.
type Total struct {
	Name        string `json:"name"`
	Connections int    `json:"connections"`
	Express     Rate   `json:"express"`
	// Rest is how many others are summed up here, as they send less; 0 for one.
	Rest int `json:"rest,omitempty"`
}

// Link is what a container and a peer send each other.
type Link struct {
	Container   int  `json:"container"` // index into Talk.Containers
	Peer        int  `json:"peer"`      // index into Talk.Peers
	Connections int  `json:"connections"`
	Express     Rate `json:"express"`
}

// Talk says who talks to whom, and sums that up by peer, port and protocol.
type Talk struct {
	Containers []Total `json:"containers"`
	Peers      []Total `json:"peers"` // containers by name, others by address
	Links      []Link  `json:"links"`
	Ports      []Total `json:"ports"` // where connections were opened to
	Protocols  []Total `json:"protocols"`
}

// PeerOf returns the other end of a connection: a container's name, or an address.
func PeerOf(f *api.Flow) string {
	if f.Direction == api.DirectionIn {
		return cmp.Or(f.Peer, f.Orig.Src)
	}
	return cmp.Or(f.Peer, f.Orig.Dst)
}

// TalkOf sums up connections.
func TalkOf(all []Connection) Talk {
	containers, peers, ports, protocols := make(sums), make(sums), make(sums), make(sums)
	for i := range all {
		c := &all[i]
		containers.add(c.Container, c)
		peers.add(PeerOf(&c.Flow), c)
		ports.add(fmt.Sprintf("%s/%d", c.Proto, c.Orig.Dport), c)
		protocols.add(c.Proto, c)
	}
	var t Talk
	var container, peer map[string]int
	t.Containers, container = containers.most("containers")
	t.Peers, peer = peers.most("peers")
	t.Ports, _ = ports.most("ports")
	t.Protocols, _ = protocols.most("protocols")
	links := make(map[[2]int]*Link)
	for i := range all {
		c := &all[i]
		ends := [2]int{container[c.Container], peer[PeerOf(&c.Flow)]}
		l := links[ends]
		if l == nil {
			l = &Link{Container: ends[0], Peer: ends[1]}
			links[ends] = l
		}
		l.Connections++
		l.Express = l.Express.plus(c.Total())
	}
	t.Links = make([]Link, 0, len(links))
	for _, l := range links {
		t.Links = append(t.Links, *l)
	}
	sort.SliceStable(t.Links, func(i, j int) bool {
		a, b := &t.Links[i], &t.Links[j]
		return cmp.Or(a.Container-b.Container, a.Peer-b.Peer) < 0
	})
	return t
}

// sums are totals by name.
type sums map[string]*Total

func (s sums) add(name string, c *Connection) {
	t := s[name]
	if t == nil {
		t = &Total{Name: name}
		s[name] = t
	}
	t.Connections++
	t.Express = t.Express.plus(c.Total())
}

// most returns those that send most, with the others as the last one, and where in this
// list each name is.
func (s sums) most(what string) (list []Total, place map[string]int) {
	sorted := slices.SortedFunc(maps.Values(s), func(a, b *Total) int {
		return cmp.Or(cmp.Compare(b.Express.Bytes, a.Express.Bytes), cmp.Compare(b.Connections, a.Connections), cmp.Compare(a.Name, b.Name))
	})
	list, place = make([]Total, 0, mostTotals), make(map[string]int, len(s))
	for i, t := range sorted {
		if i < mostTotals-1 || len(sorted) == mostTotals {
			list = append(list, *t)
			place[t.Name] = i
			continue
		}
		if i == mostTotals-1 {
			list = append(list, Total{})
		}
		rest := &list[mostTotals-1]
		rest.Rest++
		rest.Name = fmt.Sprintf("%d more %s", rest.Rest, what)
		rest.Connections += t.Connections
		rest.Express = rest.Express.plus(t.Express)
		place[t.Name] = mostTotals - 1
	}
	return list, place
}
