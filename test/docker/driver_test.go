package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/state"
)

// inVain is the timeout of connections that must fail.
const inVain = time.Second

// driverConfig are the settings with Docker's network driver. The driver's files are
// on the machine.
const driverConfig = "docker: {enabled: true, directory: /run/scon/docker}\n"

// newDriver starts SCON with the driver.
func newDriver(t *testing.T, m *Machine) *SCON {
	t.Helper()
	config := filepath.Join(t.TempDir(), "scon.yaml")
	if err := os.WriteFile(config, []byte(driverConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return newSCON(t, m, "--config", config)
}

// createNetwork creates a network with the driver, removed at the end of the
// test, and returns the name of its bridge.
func (e *Engine) createNetwork(t *testing.T, name string, options ...string) (bridge string) {
	t.Helper()
	id := e.Docker(t, append(append([]string{"network", "create", "-d", "scon"}, options...), name)...)
	t.Cleanup(func() { _ = e.Command("docker", "network", "rm", name).Run() })
	return "scon-" + id[:10]
}

// TestDriver tests networks of SCON's driver: their containers reach others and are
// reached as with Docker's bridge driver, by the express path, across restarts of
// either daemon, and nothing is left at the end. There is no run without SCON.
func TestDriver(t *testing.T) {
	e := Start(t)
	s := newDriver(t, e.Machine)
	folder := t.TempDir()
	page := writePage(t, folder, "page", 1<<10)

	e.createNetwork(t, "blue", "--subnet", "172.30.0.0/24", "--ipv6", "--subnet", "fd00:5c::/64")
	e.createNetwork(t, "green", "--subnet", "172.29.0.0/24")
	web := e.RunNginx(t, "web", folder, "--network", "blue")
	s.waitHooked(t, web.Name)
	client := newClient(t, e, 8080)
	get := func() { client.get(t, "page", page) }
	get()
	s.waitExpress(t, from(web.Name, "tcp", client.port()), get)

	mate := e.Run(t, Spec{Name: "mate", Image: "nginx", Options: []string{"--network", "blue", "--publish", "8090:90"}, Command: []string{"busybox", "httpd", "-f", "-p", "90"}})
	other := e.Run(t, Spec{Name: "other", Image: "nginx", Options: []string{"--network", "green"}, Command: []string{"sleep", "1000"}})
	docker0 := e.Run(t, Spec{Name: "docker0", Image: "nginx", Command: []string{"sleep", "1000"}})
	outside := e.ListenEdge(t, edgeAddr+":0")
	published, direct := hostAddr+":8080", web.Address+":80"
	for _, c := range []struct {
		name string
		from *Container
		to   string
		ok   bool
	}{
		{"a neighbour", mate, direct, true},
		{"a neighbour's published port", mate, published, true},
		{"its own published port", web, published, true},
		{"outside", mate, outside, true},
		{"another network's container", other, direct, false},
		{"another network's published port", other, published, true},
		{"a container from Docker's own network", docker0, direct, false},
		{"a published port from Docker's own network", docker0, published, true},
		{"a container of Docker's own network", mate, docker0.Address + ":80", false},
		{"the host's loopback device", mate, "127.0.0.1:8080", false},
	} {
		t.Run(c.name, func(t *testing.T) { c.from.wantReach(t, c.to, c.ok) })
	}
	t.Run("after another program removed the driver's rules", func(t *testing.T) {
		output(t, e.Command("nft", "delete", "table", "inet", "scon_docker"))
		eventually(t, "the rules are restored", func() error {
			return e.Command("nft", "list", "table", "inet", "scon_docker").Run()
		})
		other.wantReach(t, direct, false)
		other.wantReach(t, published, true)
		docker0.wantReach(t, direct, false)
	})
	t.Run("from the host", func(t *testing.T) {
		for _, at := range []string{"127.0.0.1:8080", published, direct} {
			e.Sh(t, "busybox wget -q -O /dev/null http://"+at+"/page")
		}
	})
	t.Run("by name", func(t *testing.T) {
		if out := e.Docker(t, mate.Exec("busybox", "nslookup", "web")...); !strings.Contains(out, web.Address) {
			t.Errorf("no connection to web at %s: %s", web.Address, out)
		}
	})
	t.Run("IPv6", func(t *testing.T) {
		e.Sh(t, "ip address add fd00:ed::2/64 dev uplink nodad; ip -n edge address add fd00:ed::1/64 dev wire nodad")
		mate.waitListening(t, 90)
		conn, err := e.DialEdge("tcp6", "[fd00:ed::2]:8090")
		if err != nil {
			t.Fatalf("a published port: %v", err)
		}
		conn.Close()
		l := e.ListenEdge(t, "[fd00:ed::1]:0")
		if conn, err = dial(mate.netns(t), "tcp6", l, patience); err != nil {
			t.Fatalf("outside: %v", err)
		}
		conn.Close()
	})
	t.Run("directly from outside", func(t *testing.T) {
		output(t, e.EdgeCommand("ip", "route", "add", "172.30.0.0/24", "via", hostAddr))
		if conn, err := dial(e.Edge(), "tcp4", direct, inVain); err == nil {
			conn.Close()
			t.Error("the edge reached a port that is not published")
		}
	})
	t.Run("internal", func(t *testing.T) {
		e.createNetwork(t, "inside", "--internal", "--subnet", "172.28.0.0/24")
		in := e.Run(t, Spec{Name: "in", Image: "nginx", Options: []string{"--network", "inside"}, Command: []string{"nginx"}})
		in2 := e.Run(t, Spec{Name: "in2", Image: "nginx", Options: []string{"--network", "inside"}, Command: []string{"sleep", "1000"}})
		in.waitListening(t, 80)
		in2.wantReach(t, in.Address+":80", true)
		in2.wantReach(t, outside, false)
		output(t, e.Enter("ip", strings.Fields("route replace default via 172.28.0.1"), "--net="+in2.netns(t)))
		in2.wantReach(t, outside, false)
	})
	t.Run("refusals", func(t *testing.T) {
		for _, c := range []struct{ command, want string }{
			{"network create -d scon -o parent=uplink x", "not by a parent device"},
			{"network create -d scon -o com.docker.network.driver.mut=1400 x", `did you mean "com.docker.network.driver.mtu"?`},
			{"network create -d scon --subnet 172.30.0.128/25 x", "overlaps"},
			{"run --rm --network green --publish 8080:80 nginx busybox true", "already allocated"},
		} {
			out, err := e.Command("docker", strings.Fields(c.command)...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("docker %s: %v, want %q: %s", c.command, err, c.want, out)
			}
		}
	})
	t.Run("restarts", func(t *testing.T) {
		s.Kill(t, state.Express)
		get() // express, then regular
		s.Up(t)
		s.waitHooked(t, web.Name)
		s.waitExpress(t, from(web.Name, "tcp", client.port()), get)
		web.Stop(t)
		e.Docker(t, "start", web.Name)
		s.waitHooked(t, web.Name)
		eventually(t, "answer of the container that was started again", func() error {
			_, err := newClient(t, e, 8080).fetch("page")
			return err
		})
		for _, c := range []*Container{mate, other, docker0} {
			c.Remove(t) // their init ends only by SIGKILL
		}
		e.restart(t)
		e.Docker(t, "start", web.Name)
		s.waitHooked(t, web.Name)
		eventually(t, "answer of a container after a restart of dockerd", func() error {
			_, err := newClient(t, e, 8080).fetch("page")
			return err
		})
	})
	t.Run("end", func(t *testing.T) {
		web.Remove(t)
		e.Docker(t, "network", "rm", "blue", "green")
		left := e.Sh(t, "ip -o link; nft list tables; iptables -S; ip6tables -S; ls -A /run/scon/docker")
		for _, word := range []string{": sdh", ": sdc", ": scon-", "scon_docker", "SCON-DOCKER", ".json"} {
			if strings.Contains(left, word) {
				t.Errorf("%s is left: %s", word, left)
			}
		}
	})
}

// wantReach fails unless a container can, or cannot, open a TCP connection to
// an address.
func (c *Container) wantReach(t *testing.T, addr string, want bool) {
	t.Helper()
	limit := inVain
	if want {
		limit = patience
	}
	conn, err := dial(c.netns(t), "tcp4", addr, limit)
	if err == nil {
		conn.Close()
	}
	if (err == nil) != want {
		t.Errorf("%s reaches %s: %v, want %v: %v", c.Name, addr, err == nil, want, err)
	}
}
