package docker

import (
	"encoding/json"
	"testing"

	"github.com/docker/go-plugins-helpers/network"
)

// FuzzNetworkOf: every body of Docker's request is a valid network, or is refused.
func FuzzNetworkOf(f *testing.F) {
	for _, r := range []*network.CreateNetworkRequest{
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
		r := new(network.CreateNetworkRequest)
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
