package docker

import (
	"encoding/json"
	"net/netip"
	"testing"
)

// FuzzNetworkOf: every body of Docker's request is a valid network, or is refused.
func FuzzNetworkOf(f *testing.F) {
	for _, r := range []*createNetworkRequest{
		request(netID, "172.30.0.0/24", "172.30.0.1/24", map[string]any{"com.docker.network.bridge.name": "blue0"}),
		request(netID, "172.30.0.0/24", "", map[string]any{"com.docker.network.driver.mtu": "1400"}),
		request("short", "::/0", "x", nil),
	} {
		body, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := new(createNetworkRequest)
		if json.Unmarshal(body, r) != nil {
			return
		}
		n, err := networkOf(r)
		if err != nil {
			return
		}
		if n.ID != r.NetworkID || n.Bridge == "" || len(n.Bridge) > maxDeviceName || len(n.Pools) == 0 || len(n.Pools) > 2 {
			t.Errorf("%+v", n)
		}
		for _, p := range n.Pools {
			if !p.IsValid() {
				t.Errorf("subnet %v", p)
			}
		}
	})
}

// FuzzBindings: every list of ports to publish names addresses that the container has, or
// is refused.
func FuzzBindings(f *testing.F) {
	f.Add([]byte(`[{"Proto":6,"Port":80,"HostIP":"192.0.2.1","HostPort":8080,"HostPortEnd":8090}]`))
	f.Add([]byte(`[{"Proto":17,"Port":53,"HostIP":"::"},{"Proto":6}]`))
	f.Add([]byte(`{"Proto":"tcp"}`))
	n := &Network{HostIP: netip.MustParseAddr("192.0.2.9")}
	e := &Endpoint{Addrs: []netip.Addr{netip.MustParseAddr("172.30.0.2"), netip.MustParseAddr("fd00::2")}}
	f.Fuzz(func(t *testing.T, body []byte) {
		var option any
		if json.Unmarshal(body, &option) != nil {
			return
		}
		bindings, err := bindingsOf(option)
		if err != nil {
			return
		}
		for _, b := range bindings {
			hosts, err := n.hosts(e, b)
			if err == nil && (len(hosts) == 0 || len(hosts) > 2) {
				t.Errorf("%+v at %v", b, hosts)
			}
			for _, h := range hosts {
				if _, ok := e.addr(h.Is6()); !ok {
					t.Errorf("%+v at %v", b, h)
				}
			}
		}
	})
}
