package docker

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestManagedPlugin runs the network driver as a plugin that dockerd manages: networks of
// it are as those of the service, their connections go express, and nothing is left.
func TestManagedPlugin(t *testing.T) {
	e := Start(t)
	bin, err := buildSCON()
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../../scripts/docker-plugin.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e.Sh(t, "mkdir /run/networks; "+script+" "+dir+" "+bin)
	e.Docker(t, "plugin", "create", "scon", dir)
	e.Docker(t, "plugin", "set", "scon", "networks.source=/run/networks")
	e.Docker(t, "plugin", "enable", "scon")
	e.Docker(t, "network", "create", "--driver", "scon:latest", "blue")

	s := newSCON(t, e.Machine)
	page := writePage(t, dir, "page", 1<<10)
	web := e.RunNginx(t, "web", dir, "--network", "blue")
	s.waitHooked(t, web.Name)
	client := newClient(t, e, 8080)
	get := func() { client.get(t, "page", page) }
	get()
	s.waitExpress(t, from(web.Name, "tcp", client.port()), get)

	web.Remove(t)
	e.Docker(t, "network", "rm", "blue")
	e.Docker(t, "plugin", "disable", "scon")
	e.Docker(t, "plugin", "rm", "scon")
	if left := e.Sh(t, "ip -o link; nft list tables; iptables -S; ls /run/networks/docker"); strings.Contains(left, "scon") || strings.Contains(left, "SCON") || strings.Contains(left, ".json") {
		t.Errorf("left: %s", left)
	}
}
