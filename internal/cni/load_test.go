package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestShippedList(t *testing.T) {
	c, err := Load("../../packaging/10-scon.conflist")
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "scon" || c.Kind != Veth || c.AgentDown != DownInPlace || c.HandOver != HandOverSwap || c.CNIVersion != "1.1.0" {
		t.Errorf("%+v", c)
	}
}

func TestLoadRefuses(t *testing.T) {
	for want, content := range map[string]string{
		"no plugin of type scon-cni": `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge"}]}`,
		"unexpected end":             `{`,
		"ipam.type is missing":       `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni"}`,
		"kind macvlan wants":         `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni", "kind": "macvlan", "ipam": {"type": "scon", "subnet": "10.0.0.0/24"}}`,
		"want l2 or l3 or l3s":       `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni", "kind": "ipvlan", "master": "eth0", "mode": "l4", "ipam": {"type": "scon", "subnet": "10.0.0.0/24"}}`,
		"want direct for kind veth":  `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni", "sharing": "multi-tenant", "ipam": {"type": "scon", "subnet": "10.0.0.0/24"}}`,
		"only tcp and udp":           `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni", "rules": [{"direction": "ingress", "port": 80}], "ipam": {"type": "scon", "subnet": "10.0.0.0/24"}}`,
		"want a subnet such as":      `{"cniVersion": "1.0.0", "name": "n", "type": "scon-cni", "ipam": {"type": "scon", "subnet": "10.0.0.0/24", "routes": [{"dst": "all"}]}}`,
	} {
		file := filepath.Join(t.TempDir(), "net.conf")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q in it", content, err, want)
		}
	}
}

// Two requests of one network have one digest; another setting has another.
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
