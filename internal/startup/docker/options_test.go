package docker

import (
	"net/netip"
	"strings"
	"testing"
)

const (
	netID   = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	otherID = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
)

// request is Docker's request of a network with an IPv4 subnet.
func request(id, pool, gateway string, generic map[string]any) *createNetworkRequest {
	r := &createNetworkRequest{NetworkID: id, Options: map[string]any{labelGeneric: generic}}
	if pool != "" {
		r.IPv4Data = []*ipamData{{Pool: pool, Gateway: gateway}}
	}
	return r
}

func TestOptions(t *testing.T) {
	n, err := networkOf(request(netID, "172.30.0.0/24", "172.30.0.1/24", map[string]any{
		"com.docker.network.bridge.name":                 "blue0",
		"com.docker.network.bridge.enable_icc":           "false",
		"com.docker.network.bridge.enable_ip_masquerade": "false",
		"com.docker.network.bridge.host_binding_ipv4":    "127.0.0.1",
		"com.docker.network.driver.mtu":                  "1400",
		"com.docker.network.container_iface_prefix":      "net",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if n.Bridge != "blue0" || !n.Apart || n.Masquerade || n.HostIP != netip.MustParseAddr("127.0.0.1") || n.MTU != 1400 || n.IfPrefix != "net" {
		t.Errorf("network is %+v", n)
	}
	if n, err = networkOf(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)); err != nil {
		t.Fatal(err)
	}
	if n.Bridge != "scon-0123456789" || n.Apart || !n.Masquerade || n.HostIP.IsValid() || n.IfPrefix != "eth" || n.gateway(false) != "172.30.0.1" || n.gateway(true) != "" {
		t.Errorf("network without options is %+v", n)
	}
}

func TestRefused(t *testing.T) {
	const pool, gateway = "172.30.0.0/24", "172.30.0.1/24"
	two := request(netID, pool, gateway, nil)
	two.IPv4Data = append(two.IPv4Data, &ipamData{Pool: "10.0.0.0/8", Gateway: "10.0.0.1/8"})
	for _, c := range []struct {
		request *createNetworkRequest
		want    string
	}{
		{request(netID, pool, gateway, map[string]any{"parent": "eth0"}), "option parent: containers leave by the host's routes"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.nam": "x"}), `did you mean "com.docker.network.bridge.name"?`},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.name": "a/b"}), "want a device name"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.name": "e+"}), "want a device name"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.name": "br%d"}), "want a device name"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.name": "-j"}), "want a device name"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.name": ".."}), "want a device name"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.container_iface_prefix": "e%d"}), "want a prefix"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.enable_icc": "perhaps"}), "want true or false"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.driver.mtu": "9"}), "want a number of bytes"},
		{request(netID, pool, gateway, map[string]any{"com.docker.network.bridge.host_binding_ipv4": "::1"}), "want an IPv4 address"},
		{request(netID, "", "", nil), "has no subnet"},
		{request(netID, "172.30.0.0", gateway, nil), `subnet "172.30.0.0"`},
		{request(netID, pool, "172.30.0.1", nil), `gateway "172.30.0.1"`},
		{request("short", pool, gateway, nil), "network identifier"},
		{two, "2 subnets of one family"},
	} {
		if _, err := networkOf(c.request); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.request.Options, err, c.want)
		}
	}
}

func TestAdmitScript(t *testing.T) {
	for _, c := range []struct{ name, there, want string }{
		{"no Docker", "-P FORWARD ACCEPT", `*filter
:SCON-DOCKER - [0:0]
-A SCON-DOCKER -i b0 -j ACCEPT
-A SCON-DOCKER -o b0 -j ACCEPT
-I FORWARD 1 -j SCON-DOCKER
COMMIT
`},
		{"Docker 20", `-P FORWARD DROP
-N DOCKER-ISOLATION-STAGE-1
-N DOCKER-ISOLATION-STAGE-2
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -j REJECT`, `*filter
:SCON-DOCKER - [0:0]
-A SCON-DOCKER -i b0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A SCON-DOCKER -i b0 ! -o b0 -j DOCKER-ISOLATION-STAGE-2
-A SCON-DOCKER -i b0 -j ACCEPT
-A SCON-DOCKER -o b0 -j ACCEPT
-I FORWARD 3 -j SCON-DOCKER
COMMIT
`},
		{"Docker 28, and there already", `-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A FORWARD -j SCON-DOCKER`, `*filter
:SCON-DOCKER - [0:0]
-A SCON-DOCKER -i b0 -j ACCEPT
-A SCON-DOCKER -o b0 -j ACCEPT
COMMIT
`},
	} {
		if got := admitScript(strings.Split(c.there, "\n"), []string{"b0"}); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}
