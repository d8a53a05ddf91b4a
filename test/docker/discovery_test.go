package docker

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
)

// TestDiscovery checks that a running daemon finds containers as they start,
// in networks created later, and ignores an internal network.
func TestDiscovery(t *testing.T) {
	e := Start(t)
	folder := t.TempDir()
	page := writePage(t, folder, "page", 1<<10)
	withoutAndWith(t, e.Machine, func(t *testing.T, s *SCON) {
		for i, network := range []string{"blue", "green"} {
			t.Run(network, func(t *testing.T) {
				e.Docker(t, "network", "create", network)
				t.Cleanup(func() { e.Docker(t, "network", "rm", network) })
				web := e.RunNginx(t, "web-"+network, folder, "--network", network)
				s.waitHooked(t, web.Name)
				if s != nil {
					id := e.Docker(t, "inspect", "--format", "{{.Id}}", web.Name)
					c, _ := s.container(t, web.Name)
					if c.ID == "" || !strings.HasPrefix(id, c.ID) && !strings.HasPrefix(c.ID, id) {
						t.Errorf("the status has id %q, Docker %q", c.ID, id)
					}
					if bridge := "br-" + e.Docker(t, "network", "inspect", "--format", "{{slice .Id 0 12}}", network); c.Bridge != bridge {
						t.Errorf("the status has bridge %q, Docker %q", c.Bridge, bridge)
					}
				}
				client := newClient(t, e, 8080+i%2)
				get := func() { client.get(t, "page", page) }
				get()
				s.waitExpress(t, from(web.Name, "tcp", client.port()), get)
			})
		}
		t.Run("internal", func(t *testing.T) { testInternal(t, e, s) })
	})
}

// TestRename checks that a container's new name replaces the old one while it runs.
func TestRename(t *testing.T) {
	e := Start(t)
	c := e.RunEcho(t, "before")
	s := newSCON(t, e.Machine)
	s.Up(t)
	s.waitHooked(t, c.Name)
	e.Docker(t, "rename", c.Name, "after")
	t.Cleanup(func() { e.Docker(t, "rename", "after", c.Name) })
	s.waitHooked(t, "after")
	if _, known := s.container(t, c.Name); known {
		t.Errorf("%s is still known", c.Name)
	}
	if out, err := s.command("explain", "after").CombinedOutput(); err != nil {
		t.Errorf("explain of the new name: %v: %s", err, out)
	}
}

// testInternal checks that a container of an internal network reaches its
// neighbour but nothing outside, even with a route there, which some versions
// of Docker set.
func testInternal(t *testing.T, e *Engine, s *SCON) {
	e.Docker(t, "network", "create", "--internal", "--subnet", "172.31.0.0/24", "inside")
	t.Cleanup(func() { e.Docker(t, "network", "rm", "inside") })
	echo := e.RunEcho(t, "echo-inside", "--network", "inside")
	c := e.RunEcho(t, "client-inside", "--network", "inside")
	output(t, e.Enter("ip", strings.Fields("route replace default via 172.31.0.1"), "--net="+c.netns(t)))

	conn, err := c.Dial(t, fmt.Sprintf("%s:%d", echo.Address, echoPort))
	if err != nil {
		t.Fatalf("neighbour: %v", err)
	}
	defer conn.Close()
	line := []byte("hello\n")
	for range 200 {
		if _, err := conn.Write(line); err != nil {
			t.Fatalf("neighbour: %v", err)
		}
		if _, err := io.ReadFull(conn, line); err != nil {
			t.Fatalf("neighbour: %v", err)
		}
	}

	outside := e.ListenEdge(t, edgeAddr+":0")
	if conn, err := e.DialEdge("tcp4", outside); err != nil {
		t.Fatalf("listener: %v", err)
	} else {
		conn.Close()
	}
	for range 2 {
		if conn, err := c.Dial(t, outside); err == nil {
			conn.Close()
			t.Error("a container of an internal network reached the edge")
		}
	}
	if s == nil {
		return
	}
	for _, f := range s.Flows(t) {
		if (f.Container == echo.Name || f.Container == c.Name) && f.Peer == "" && f.State != api.FlowComposing {
			t.Errorf("a connection of an internal network with outside is not regular: %+v", f)
		}
	}
}
