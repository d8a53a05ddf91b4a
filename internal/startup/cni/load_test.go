package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestShippedList(t *testing.T) {
	c, err := Load("../../../packaging/10-scon.conflist")
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "scon" || c.Kind != Veth || c.AgentDown != DownInPlace || c.HandOver != HandOverSwap || c.CNIVersion != "1.0.0" {
		t.Errorf("%+v", c)
	}
}

// with returns a configuration with the given keys and the required others.
func with(keys string) string {
	if !strings.Contains(keys, `"ipam"`) {
		keys += `, "ipam": {"type": "scon", "subnet": "10.0.0.0/24"}`
	}
	return `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni", ` + keys + `}`
}

func TestLoadRefuses(t *testing.T) {
	for content, want := range map[string]string{
		`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge"}]}`: "no plugin of type scon-cni",
		`{`: "unexpected end",
		`{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni"}`: "ipam.type is missing",
	} {
		refused(t, content, want)
	}
}

func refused(t *testing.T, content, want string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "net.conf")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
		t.Errorf("%s: %v, want %q in it", content, err, want)
	}
}

// Each invalid key is refused by its name, with the accepted values.
func TestKeysRefused(t *testing.T) {
	for keys, want := range map[string]string{
		`"name": "a/b"`: "invalid characters found in network name",
		`"name": "` + strings.Repeat("n", 129) + `"`: "name has 129 bytes: want at most 128",
		`"socket": "scon.sock"`:                      "socket is \"scon.sock\": want an absolute path",
		`"socket": 7`:                                "socket is a number: want a string",
		`"agentDown": "wait"`:                        "agentDown is \"wait\": want inplace or error",
		`"handOver": "move"`:                         "handOver is \"move\": want swap or none",
		`"kind": "vteh"`:                             "kind is \"vteh\": want veth or ptp",
		`"kind": "macvlan"`:                          "master is missing: kind macvlan needs",
		`"kind": "ptp", "bridge": "b"`:               "bridge is \"b\": kind ptp has none",
		`"kind": "ptp", "master": "m"`:               "master is \"m\": kind ptp has none",
		`"kind": "ptp", "mode": "l2"`:                "mode is \"l2\": kind ptp has none",
		`"bridge": "a/b"`:                            "bridge is \"a/b\": want a device name",
		`"bridge": "a234567890123456"`:               "want a device name of 1..15 bytes",
		`"sharing": "multi-tenant"`:                  "want direct for kind veth",
		`"tenant": "a b"`:                            "tenant is \"a b\": want letters",
		`"tenant": "a", "isGateway": true, "ipam": {"type": "host-local"}`:      "want scon for a network of a tenant",
		`"kind": "ipvlan", "master": "m", "mode": "l4"`:                         "want l2 or l3 or l3s",
		`"kind": "ipvlan", "master": "m", "sharing": "multi-tenant"`:            "want single-tenant for kind ipvlan",
		`"kind": "macvlan", "master": "m", "sharing": "multi-tenant"`:           "want private or vepa",
		`"kind": "macvlan", "master": "m", "rules": [{"direction": "ingress"}]`: "traffic of kind macvlan bypasses the host's rules",
		`"kind": "macvlan", "master": "m", "isGateway": true`:                   "the host is not a gateway of kind macvlan",
		`"ipMasq": true`: "ipMasq: kind veth needs isGateway too",
		`"kind": "ovs"`:  "bridge is missing: kind ovs needs a bridge of the vSwitch",
		`"vlan": 5`:      "vlan is 5: only kind ovs has one",
		`"kind": "ovs", "bridge": "b", "vlan": 4095`:                                           "vlan is 4095: want 1..4094",
		`"kind": "tc-routing", "master": "m", "ipam": {"type": "scon", "subnet": "fd00::/64"}`: "kind tc-routing routes IPv4 only",
		`"mtu": 20`: "mtu is 20: want bytes, 68..65535",
		`"mtu": 1279, "ipam": {"type": "scon", "subnet": "fd00::/64"}`: "mtu is 1279: want at least 1280 for the IPv6 range fd00::/64",
		`"bridge": "br%d"`:                                           "without '/', ':', '%' and blanks",
		`"kind": "macvlan", "master": "eth%d"`:                       "want a device name",
		`"kind": "ovs", "bridge": "b", "vlan": 5, "isGateway": true`: "the host's port of the vSwitch is untagged",
		`"ipam": {"type": "dhcp"}`:                                   "ipam.type is dhcp",
		`"capabilities": {"ips": true}`:                              "capabilities.ips: SCON supports bandwidth only",
		`"capabilities": {"mac": true}, "ipam": {"type": "static"}`:  "capabilities.mac: SCON supports bandwidth only",
		`"capabilities": {"portMappings": true}`:                     "want plugin portmap after scon-cni",
		`"prevResult": 7`:                                            "configuration: prevResult is a number: want an object",
		`"mtu": "1500"`:                                              "mtu is a string: want a whole number",
		`"mtu": 1500.5`:                                              "mtu is a number 1500.5: want a whole number",
		`"isGateway": "yes"`:                                         "isGateway is a string: want true or false",
		`"isGatway": true`:                                           "unknown key \"isGatway\": did you mean \"isGateway\"",
		`"qos": {"ingresRate": 8000}`:                                "unknown key \"ingresRate\" in qos",
		`"qos": {"ingressRate": 7999}`:                               "qos.ingressRate is 7999: want bits per second, 8000..400000000000",
		`"qos": {"ingressRate": -1}`:                                 "qos.ingressRate is a number -1: want a non-negative whole number",
		`"qos": {"egressRate": 8000, "egressPeak": 8000}`:            "qos.egressPeak is 8000: want bits per second above the rate",
		`"qos": {"egressBurst": 8000}`:                               "qos.egressRate is missing",
		`"qos": []`:                                                  "qos is an array: want an object",
		`"rules": [{"direction": "ingress"}], "ipam": {"type": "scon", "subnet": "fd00::/64"}`: "rules support IPv4 only",
		`"rules": [{"direction": "in"}]`:                                                                      "rules[0]: direction is \"in\": want ingress or egress",
		`"rules": [{"direction": "ingress", "port": 80}]`:                                                     "only tcp and udp have ports",
		`"rules": [{"direction": "ingress", "protocol": "tcp", "port": 70000}]`:                               "want a whole number, 0..65535",
		`"rules": [{"direction": "ingress", "protocol": "tcp", "port": 9, "portEnd": 8}]`:                     "portEnd is 8: want at least port",
		`"rules": [{"direction": "ingress", "cidr": "10.0.0.1/8"}]`:                                           "cidr is \"10.0.0.1/8\": want an IPv4 subnet",
		`"rules": [{"direction": "ingress", "protokol": "tcp"}]`:                                              "unknown key \"protokol\" in rules[0]",
		`"ipam": {"type": "scon"}`:                                                                            "ipam.subnet is missing",
		`"ipam": {"type": "scon", "rangeStart": "10.0.0.9"}`:                                                  "rangeStart, rangeEnd and gateway need it",
		`"ipam": {"type": "scon", "ranges": [[]]}`:                                                            "ipam.ranges[0] is empty",
		`"ipam": {"type": "scon", "subnet": "10.0.0.0/24", "rangestart": "10.0.0.9"}`:                         "unknown key \"rangestart\" in ipam",
		`"ipam": {"type": "scon", "ranges": [[{"subnet": "10.0.0.0/24", "gatway": ""}]]}`:                     "unknown key \"gatway\" in ipam.ranges[0][0]",
		`"ipam": {"type": "scon", "ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.0/25"}]]}`:        "overlap",
		`"ipam": {"type": "scon", "ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}`:          "want one list for IPv4 and one for IPv6",
		`"ipam": {"type": "scon", "subnet": "10.0.0.0/24", "routes": [{"dst": "all"}]}`:                       "ipam.routes[0].dst is \"all\": want a subnet such as",
		`"ipam": {"type": "scon", "subnet": "10.0.0.0/24", "routes": [{"dst": "10.0.0.1/8"}]}`:                "did you mean 10.0.0.0/8",
		`"ipam": {"type": "scon", "subnet": "10.0.0.0/24", "routes": [{"dst": "10.0.0.0/8", "gw": "x"}]}`:     "ipam.routes[0].gw is \"x\": want an address",
		`"ipam": {"type": "scon", "subnet": "10.0.0.0/24", "routes": [{"dst": "10.0.0.0/8", "gw": "fd::1"}]}`: "of the family of dst",

		`"ipam": {"type": "scon", "subnet": "10.0.0.0/24", "routes": [{"dst": "::/0"}]}`: "ipam.routes[0].gw is missing: no range has a gateway of the address family of ::/0",
	} {
		refused(t, with(keys), want)
	}
}

// Equal configurations have one digest; another setting changes it.
func TestDigest(t *testing.T) {
	const one = `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni", "ipam": {"type": "scon", "subnet": "10.0.0.0/24"}`
	digest := func(more string) string {
		c, err := Parse([]byte(one + more + "}"))
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest()
	}
	if digest("") != digest(`, "cniVersion": "1.1.0", "runtimeConfig": {"bandwidth": {"ingressRate": 8000}}, "handOver": "none"`) {
		t.Error("what is one container's changes the network")
	}
	if digest("") == digest(`, "mtu": 1400`) {
		t.Error("another MTU is the same network")
	}
}
