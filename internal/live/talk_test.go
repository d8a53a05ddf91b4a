package live

import (
	"fmt"
	"math"
	"testing"

	"github.com/scon-project/scon/internal/api"
)

// However many peers, ports and containers there are, the lists are bounded, and nothing
// is lost in them.
func TestTalk(t *testing.T) {
	var all []Connection
	for i := range 500 {
		c := Connection{Flow: api.Flow{
			Container: fmt.Sprint("c", i%40), Proto: []string{"tcp", "udp"}[i%2], Direction: []string{"out", "in"}[i%2],
			Orig: api.Tuple{Src: fmt.Sprint("10.0.0.", i%100), Dst: "172.17.0.2", Dport: uint16(i)},
		}}
		c.Express[0] = Rate{1, float64(i)}
		all = append(all, c)
	}
	all[0].Peer = "db"
	all[0].Express[0] = Rate{10, 1e6}
	talk := TalkOf(all)
	for name, list := range map[string][]Total{"containers": talk.Containers, "peers": talk.Peers, "ports": talk.Ports, "protocols": talk.Protocols} {
		connections, packets, bytes := 0, 0.0, 0.0
		for _, total := range list {
			connections += total.Connections
			packets += total.Express.Packets
			bytes += total.Express.Bytes
		}
		if connections != 500 || packets != 509 || math.Abs(bytes-1e6-499*250) > 1 || len(list) > mostTotals {
			t.Errorf("%s: %d connections, %v packets, %v bytes in %d", name, connections, packets, bytes, len(list))
		}
	}
	connections := 0
	for _, l := range talk.Links {
		connections += l.Connections
		if l.Container >= len(talk.Containers) || l.Peer >= len(talk.Peers) {
			t.Errorf("a link of nobody: %+v", l)
		}
	}
	if connections != 500 || len(talk.Links) > mostTotals*mostTotals {
		t.Errorf("%d links of %d connections", len(talk.Links), connections)
	}
	if talk.Peers[0].Name != "db" || talk.Peers[1].Name != "172.17.0.2" || talk.Containers[11].Name != "29 more containers" || talk.Containers[11].Rest != 29 || len(talk.Protocols) != 2 {
		t.Errorf("%+v", talk)
	}
	if empty := TalkOf(nil); empty.Links == nil || empty.Peers == nil {
		t.Errorf("%+v", empty)
	}
}
