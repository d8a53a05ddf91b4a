package express_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A container from the pool is on the express path from its first connection:
// its port was hooked before it came.
func TestPooledContainerGoesExpress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	network := filepath.Join(dir, "net.conf")
	conf := `{"cniVersion": "1.1.0", "name": "lab", "type": "scon-cni", "bridge": "docker0", "ipam": {"type": "scon",
		"subnet": "172.17.0.0/16", "rangeStart": "172.17.0.200", "rangeEnd": "172.17.0.220", "gateway": "172.17.0.1",
		"routes": [{"dst": "0.0.0.0/0"}]}}`
	if err := os.WriteFile(network, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) {
		c.Startup.Enabled, c.Startup.Networks, c.Startup.EnvNetworks = true, []string{network}, []string{"lab"}
		c.Startup.Pool.WarmTarget, c.Startup.Pool.Minimum = 1, 1
	}})
	b.Serve(state.Startup)
	port := func() (c api.Container, found bool) {
		for _, c := range b.Status().Containers {
			if strings.HasPrefix(c.Dev, "scp") {
				return c, true
			}
		}
		return c, false
	}
	scontest.Eventually(t, "the pooled namespace is hooked", func() error {
		if _, ok := port(); !ok {
			return fmt.Errorf("%+v", b.Status().Containers)
		}
		return nil
	})

	// As scon-oci does.
	spec := `{"annotations": {"scon.network": "lab"}, "linux": {"namespaces": [{"type": "network"}]}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	create(t, state.Startup.Socket(b.StateDir()), id, dir)
	where := netnsOf(t, filepath.Join(dir, "config.json"))
	if err := netns.Attach(filepath.Base(b.Node("c9")), b.Seen(where)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Delete(filepath.Base(b.Node("c9"))) })

	c := b.Connect("tcp", "c9", lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 0)).GoExpress()
	c.Exchange(1 << 20)
	scontest.Eventually(t, "it is known by its identifier", func() error {
		for _, c := range b.Status().Containers {
			if c.ID == id && c.Name == id[:12] && c.ExpressPackets > 0 {
				return nil
			}
		}
		return fmt.Errorf("%+v", b.Status().Containers)
	})
}

// So is one whose device is made in its runtime's namespace, by CNI.
func TestAttachedContainerGoesExpress(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) {
		c.Startup.Enabled, c.Startup.Pool = true, config.Pool{MemoryLimit: 1 << 20, Cooldown: time.Second}
	}})
	b.Serve(state.Startup)
	name := filepath.Base(b.Node("c9"))
	if err := netns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Delete(name) })
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "lab", "type": "scon-cni", "socket": %q, "bridge": "docker0",
		"ipam": {"type": "scon", "subnet": "172.17.0.0/16", "rangeStart": "172.17.0.200", "gateway": "172.17.0.1",
		"routes": [{"dst": "0.0.0.0/0"}]}}`, state.Startup.Socket(b.StateDir()))
	ask(t, state.Startup.Socket(b.StateDir()), "/v1/cni", conf, map[string]string{
		"Cni-Command": "ADD", "Cni-Containerid": "c9", "Cni-Netns": netns.Path(name), "Cni-Ifname": "eth0", "Cni-Path": "/",
	})
	c := b.Connect("tcp", "c9", lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 0)).GoExpress()
	c.Exchange(1 << 20)
}

// create asks the agent as scon-oci does before a container is created.
func create(t *testing.T, socket, id, bundle string) {
	t.Helper()
	ask(t, socket, "/v1/oci", "", map[string]string{"Oci-Verb": "create", "Oci-Id": id, "Oci-Bundle": bundle})
}

// ask sends the agent what its C clients send.
func ask(t *testing.T, socket, path, body string, header map[string]string) {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequest(http.MethodPost, "http://scon"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range header {
		req.Header.Set(key, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s", resp.Status, answer)
	}
}

// netnsOf is the path of the network namespace in a container's configuration.
func netnsOf(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Linux struct{ Namespaces []struct{ Path string } }
	}
	if err := json.Unmarshal(content, &spec); err != nil {
		t.Fatal(err)
	}
	return spec.Linux.Namespaces[0].Path
}
