package docker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/nstest"
)

// world is a host with a driver, and a host outside:
//
//	containers of bridge scon-... --- host 192.0.2.2, port 8080 --- outside 192.0.2.1
type world struct {
	t             *testing.T
	host, outside string
	dir           string
	driver        *Driver
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, host: nstest.New(t), outside: nstest.New(t), dir: t.TempDir()}
	nstest.Run(t, w.host, fmt.Sprintf(`
		ip link add up0 type veth peer name eth0 netns %s
		ip addr add 192.0.2.2/24 dev up0
		ip link set up0 up`, w.outside))
	nstest.Run(t, w.outside, `
		ip addr add 192.0.2.1/24 dev eth0
		ip link set eth0 up
		ip route add 172.30.0.0/24 via 192.0.2.2`)
	w.open()
	t.Cleanup(func() { w.do(func() error { return w.driver.Close() }) })
	return w
}

// do calls fn on the host.
func (w *world) do(fn func() error) {
	w.t.Helper()
	if err := netns.Do(w.host, fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) open() {
	w.t.Helper()
	w.do(func() (err error) {
		w.driver, err = open(Options{Dir: w.dir, Logger: slog.New(slog.DiscardHandler)})
		return err
	})
}

// crash leaves a driver as a killed process does, and starts another one.
func (w *world) crash() {
	w.t.Helper()
	for id := range w.driver.held {
		w.driver.letGo(id)
	}
	w.driver.host.Close()
	w.driver.store.close()
	w.open()
}

// run joins a container to a network as Docker does, and returns the container's
// namespace.
func (w *world) run(net, endpoint, addr string, bindings ...any) (ns string) {
	w.t.Helper()
	ns = nstest.New(w.t)
	var joined *joinResponse
	w.do(func() (err error) {
		_, err = w.driver.CreateEndpoint(&createEndpointRequest{
			NetworkID: net, EndpointID: endpoint, Interface: &endpointInterface{Address: addr + "/24"},
		})
		if err == nil {
			joined, err = w.driver.Join(&endpointRequest{NetworkID: net, EndpointID: endpoint})
		}
		if err == nil {
			err = w.publish(net, endpoint, bindings...)
		}
		return err
	})
	nstest.Run(w.t, w.host, fmt.Sprintf("ip link set %s netns %s name eth0", joined.InterfaceName.SrcName, ns))
	nstest.Run(w.t, ns, fmt.Sprintf(`
		ip addr add %s/24 dev eth0
		ip link set eth0 up`, addr))
	if joined.Gateway != "" {
		nstest.Run(w.t, ns, "ip route add default via "+joined.Gateway)
	}
	return ns
}

// publish publishes ports as Docker does.
func (w *world) publish(net, endpoint string, bindings ...any) error {
	return w.driver.ProgramExternalConnectivity(&publishRequest{
		NetworkID: net, EndpointID: endpoint, Options: map[string]any{labelPorts: bindings},
	})
}

// tcp returns a binding as decoded from JSON.
func tcp(host string, hostPort, port int) map[string]any {
	return map[string]any{"Proto": unix.IPPROTO_TCP, "Port": port, "HostIP": host, "HostPort": hostPort, "HostPortEnd": hostPort}
}

// serve answers with a name in a namespace until the test ends.
func (w *world) serve(ns, name string) {
	w.t.Helper()
	var l net.Listener
	if err := netns.Do(ns, func() (err error) { l, err = net.Listen("tcp4", ":80"); return err }); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			c.Close()
		}
	}()
}

// reaches checks the name that answers at an address, "" for none.
func (w *world) reaches(ns, addr, want string) {
	w.t.Helper()
	limit := 10 * time.Second
	if want == "" {
		limit = time.Second
	}
	var c net.Conn
	err := netns.Do(ns, func() (err error) { c, err = net.DialTimeout("tcp4", addr, limit); return err })
	if err != nil {
		if want != "" {
			w.t.Errorf("%s: %v, want %s", addr, err, want)
		}
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(limit))
	if got, err := io.ReadAll(c); string(got) != want {
		w.t.Errorf("%s: %q answers (%v), want %q", addr, got, err, want)
	}
}

// Networks, containers and published ports are added and removed, and survive a killed
// driver.
func TestLife(t *testing.T) {
	w := newWorld(t)
	const endpoint, second = "aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb"
	w.do(func() error {
		return errors.Join(
			w.driver.CreateNetwork(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)),
			w.driver.CreateNetwork(request(otherID, "172.29.0.0/24", "172.29.0.1/24", nil)))
	})
	web := w.run(netID, endpoint, "172.30.0.2", tcp("", 8080, 80))
	other := w.run(otherID, second, "172.29.0.2")
	w.serve(web, "web")
	check := func() {
		t.Helper()
		w.reaches(w.outside, "192.0.2.2:8080", "web")
		w.reaches(w.host, "127.0.0.1:8080", "web")
		w.reaches(w.host, "172.30.0.2:80", "web")
		w.reaches(web, "192.0.2.2:8080", "web")
		w.reaches(other, "192.0.2.2:8080", "web")
		w.reaches(other, "172.30.0.2:80", "")
		w.reaches(w.outside, "172.30.0.2:80", "")
	}
	check()
	w.crash()
	check()

	w.do(func() error {
		err := w.publish(otherID, second, tcp("", 8080, 80))
		if err == nil || !strings.Contains(err.Error(), "already allocated") {
			t.Errorf("a port that is taken: %v", err)
		}
		if err := w.publish(otherID, second, tcp("127.0.0.1", 0, 80)); err != nil {
			t.Error(err)
		}
		if ports := w.driver.networks[otherID].Endpoints[second].Ports; len(ports) != 1 || ports[0].Port == 0 {
			t.Errorf("a port that the driver chooses: %+v", ports)
		}
		return nil
	})
	w.do(func() error {
		err := w.driver.Leave(&endpointRequest{NetworkID: netID, EndpointID: endpoint})
		return errors.Join(err, w.driver.DeleteEndpoint(&endpointRequest{NetworkID: netID, EndpointID: endpoint}))
	})
	w.reaches(w.outside, "192.0.2.2:8080", "")
	w.crash()
	w.do(func() error {
		return errors.Join(
			w.driver.DeleteNetwork(&networkRequest{NetworkID: netID}),
			w.driver.DeleteNetwork(&networkRequest{NetworkID: otherID}))
	})
	w.wantNothing()
}

// wantNothing checks that the driver left nothing on the host.
func (w *world) wantNothing() {
	w.t.Helper()
	left := nstest.Run(w.t, w.host, "ip -o link") + nstest.Run(w.t, w.host, "nft list tables") + nstest.Run(w.t, w.host, "iptables -S")
	for _, word := range []string{": " + hostPrefix, ": " + siftedPrefix, ": " + innerPrefix, ": " + bridgePrefix, tableName, admitChain} {
		if strings.Contains(left, word) {
			w.t.Errorf("%s is left: %s", word, left)
		}
	}
	if files, err := filepath.Glob(filepath.Join(w.dir, "*.json")); err != nil || len(files) > 0 {
		w.t.Errorf("files are left: %v %v", files, err)
	}
}

// A restarted driver completes or undoes what the killed one had begun.
func TestCutOff(t *testing.T) {
	w := newWorld(t)
	const endpoint = "aaaaaaaaaaaaaaaaaaaa"
	create := func(id string) error {
		return w.driver.CreateNetwork(request(id, "172.30.0.0/24", "172.30.0.1/24", nil))
	}
	w.do(func() error { return create(netID) })
	w.run(netID, endpoint, "172.30.0.2")

	t.Run("a device without a record", func(t *testing.T) {
		n := w.driver.networks[netID]
		e := n.Endpoints[endpoint]
		delete(n.Endpoints, endpoint)
		if err := w.driver.store.put(n); err != nil {
			t.Fatal(err)
		}
		w.crash()
		if left := nstest.Run(t, w.host, "ip -o link"); strings.Contains(left, e.Host) {
			t.Errorf("%s is left: %s", e.Host, left)
		}
	})
	t.Run("a record without a bridge", func(t *testing.T) {
		nstest.Run(t, w.host, "ip link del "+w.driver.networks[netID].Bridge)
		w.crash()
		w.run(netID, endpoint, "172.30.0.2")
	})
	t.Run("an address that Docker leases anew", func(t *testing.T) {
		const next = "cccccccccccccccccccc"
		web := w.run(netID, next, "172.30.0.2")
		w.serve(web, "next")
		w.reaches(w.host, "172.30.0.2:80", "next")
		if n := w.driver.networks[netID]; n.Endpoints[endpoint] != nil {
			t.Errorf("endpoints are %v", n.Endpoints)
		}
		w.do(func() error {
			return w.driver.DeleteEndpoint(&endpointRequest{NetworkID: netID, EndpointID: next})
		})
	})
	t.Run("a subnet that Docker leases anew", func(t *testing.T) {
		w.do(func() error { return create(otherID) })
		if len(w.driver.networks) != 1 {
			t.Errorf("networks are %v", w.driver.networks)
		}
	})
	w.do(func() error { return w.driver.DeleteNetwork(&networkRequest{NetworkID: otherID}) })
	w.wantNothing()
}

// Containers of a network without icc do not reach each other, whatever routes they set: neither
// by the bridge's ports, nor by the host. They reach each other's published ports, also where
// br_netfilter has the bridge send on at once what is for them.
func TestApart(t *testing.T) {
	for name, c := range map[string]struct{ internal, netfilter bool }{
		"": {}, "internal": {internal: true}, "br_netfilter": {netfilter: true}, "internal, br_netfilter": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			internal := c.internal
			r := request(netID, "172.30.0.0/24", "172.30.0.1/24", map[string]any{"com.docker.network.bridge.enable_icc": "false"})
			r.Options[labelInternal] = internal
			w.do(func() error { return w.driver.CreateNetwork(r) })
			nstest.Run(t, w.host, "sysctl -qwe net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables="+map[bool]string{true: "1", false: "0"}[c.netfilter])
			web := w.run(netID, "aaaaaaaaaaaaaaaaaaaa", "172.30.0.2", tcp("", 8080, 80))
			other := w.run(netID, "bbbbbbbbbbbbbbbbbbbb", "172.30.0.3")
			w.serve(web, "web")
			w.reaches(other, "172.30.0.2:80", "")
			for ns, neighbour := range map[string]string{web: "172.30.0.3", other: "172.30.0.2"} {
				nstest.Run(t, ns, "ip route add "+neighbour+" via 172.30.0.1")
			}
			w.reaches(other, "172.30.0.2:80", "")
			if !internal {
				w.reaches(other, "192.0.2.2:8080", "web")
				w.reaches(web, "192.0.2.2:8080", "web")
				nstest.Run(t, w.host, "nft flush ruleset")
				w.do(w.driver.restoreAdmission)
				w.reaches(other, "172.30.0.2:80", "")
			}
			w.reaches(w.host, "172.30.0.2:80", "web")
			if out, err := exec.Command("ip", "netns", "exec", other, "ping", "-n", "-q", "-c", "1", "-W", "1", "172.30.0.2").CombinedOutput(); err == nil {
				t.Errorf("a neighbour answers: %s", out)
			}
		})
	}
}

// A port is free for a container once the program that listened has ended, though connections of
// it linger in TIME_WAIT.
func TestPortOfEndedProgram(t *testing.T) {
	w := newWorld(t)
	w.do(func() error { return w.driver.CreateNetwork(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)) })
	w.do(func() error {
		l, err := net.Listen("tcp4", ":8080")
		if err != nil {
			return err
		}
		defer l.Close()
		client, err := net.Dial("tcp4", "127.0.0.1:8080")
		if err != nil {
			return err
		}
		defer client.Close()
		served, err := l.Accept()
		if err != nil {
			return err
		}
		served.Close() // the first to close
		_, _ = io.ReadAll(client)
		return nil
	})
	if out := nstest.Run(t, w.host, "ss --tcp --all --numeric"); !strings.Contains(out, "TIME-WAIT") {
		t.Fatalf("no connection lingers: %s", out)
	}
	w.serve(w.run(netID, "aaaaaaaaaaaaaaaaaaaa", "172.30.0.2", tcp("", 8080, 80)), "web")
	w.reaches(w.outside, "192.0.2.2:8080", "web")
}

// What a container asks others at a port is answered, also while the host's port of that number is
// published for another container.
func TestAnswersDuringPublication(t *testing.T) {
	w := newWorld(t)
	w.do(func() error { return w.driver.CreateNetwork(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)) })
	ns := w.run(netID, "aaaaaaaaaaaaaaaaaaaa", "172.30.0.2")
	nstest.Run(t, w.host, "sysctl -qw net.ipv4.ip_forward=1")
	var server net.PacketConn
	var client net.Conn
	err := errors.Join(
		netns.Do(w.outside, func() (err error) { server, err = net.ListenPacket("udp4", ":5353"); return err }),
		netns.Do(ns, func() (err error) { client, err = net.Dial("udp4", "192.0.2.1:5353"); return err }))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	defer client.Close()
	buf := make([]byte, 16)
	_ = errors.Join(server.SetDeadline(time.Now().Add(10*time.Second)), client.SetDeadline(time.Now().Add(10*time.Second)))
	if _, err := client.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	_, from, err := server.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	w.run(netID, "bbbbbbbbbbbbbbbbbbbb", "172.30.0.3", map[string]any{"Proto": unix.IPPROTO_UDP, "Port": 53, "HostPort": 5353, "HostPortEnd": 5353})
	if _, err := server.WriteTo([]byte("!"), from); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(buf); err != nil {
		t.Errorf("the answer: %v", err)
	}
}

// A device of another program's is neither used for a network nor removed with one.
func TestForeignBridge(t *testing.T) {
	w := newWorld(t)
	named := request(netID, "172.30.0.0/24", "172.30.0.1/24", map[string]any{"com.docker.network.bridge.name": "blue0"})
	const foreign = "ip link add blue0 type bridge"
	nstest.Run(t, w.host, foreign)
	w.do(func() error {
		if err := w.driver.CreateNetwork(named); err == nil || !strings.Contains(err.Error(), "device blue0 exists already: choose another") {
			t.Errorf("a network by that device: %v", err)
		}
		return nil
	})
	nstest.Run(t, w.host, "ip link del blue0")
	w.do(func() error { return w.driver.CreateNetwork(named) })
	// Nor is another network's, which Docker still has.
	w.do(func() error {
		second := request(otherID, "172.29.0.0/24", "172.29.0.1/24", map[string]any{"com.docker.network.bridge.name": "blue0"})
		if err := w.driver.CreateNetwork(second); err == nil || !strings.Contains(err.Error(), "device blue0 exists already: choose another") {
			t.Errorf("a network with another one's bridge: %v", err)
		}
		if len(w.driver.networks) != 1 || w.driver.networks[netID] == nil {
			t.Errorf("networks are %v", w.driver.networks)
		}
		return nil
	})
	if out := nstest.Run(t, w.host, "ip address show dev blue0"); !strings.Contains(out, "172.30.0.1") {
		t.Errorf("the first network's bridge: %s", out)
	}
	nstest.Run(t, w.host, "ip link del blue0\n"+foreign)
	w.do(func() error { return w.driver.reconcile() }) // as after a start
	if out := nstest.Run(t, w.host, "ip address show dev blue0"); strings.Contains(out, "172.30.0.1") {
		t.Errorf("the network's gateway is at another program's bridge: %s", out)
	}
	w.do(func() error { return w.driver.DeleteNetwork(&networkRequest{NetworkID: netID}) })
	nstest.Run(t, w.host, "ip link del blue0")
	w.wantNothing()
}

// A request that waited for its turn until the driver had ended changes nothing: neither the
// host, nor the records, nor another namespace whose socket has the number of the driver's.
func TestRequestAfterClose(t *testing.T) {
	w := newWorld(t)
	const endpoint = "aaaaaaaaaaaaaaaaaaaa"
	w.do(func() error { return w.driver.CreateNetwork(request(netID, "172.30.0.0/24", "172.30.0.1/24", nil)) })
	w.run(netID, endpoint, "172.30.0.2")
	host := w.driver.networks[netID].Endpoints[endpoint].Host
	w.do(func() error { return w.driver.Close() })
	nstest.Run(t, w.outside, "ip link add "+host+" type bridge")
	if err := netns.Do(w.outside, func() error {
		for range 12 {
			other, err := nlmsg.OpenCommands(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			t.Cleanup(other.Close)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"CreateNetwork": func() error {
			return w.driver.CreateNetwork(request(otherID, "172.29.0.0/24", "172.29.0.1/24", nil))
		},
		"DeleteNetwork": func() error { return w.driver.DeleteNetwork(&networkRequest{NetworkID: netID}) },
		"CreateEndpoint": func() error {
			_, err := w.driver.CreateEndpoint(&createEndpointRequest{
				NetworkID: netID, EndpointID: "bbbbbbbbbbbbbbbbbbbb", Interface: &endpointInterface{Address: "172.30.0.3/24"},
			})
			return err
		},
		"DeleteEndpoint": func() error {
			return w.driver.DeleteEndpoint(&endpointRequest{NetworkID: netID, EndpointID: endpoint})
		},
		"Join": func() error {
			_, err := w.driver.Join(&endpointRequest{NetworkID: netID, EndpointID: endpoint})
			return err
		},
		"Leave":                       func() error { return w.driver.Leave(&endpointRequest{NetworkID: netID, EndpointID: endpoint}) },
		"ProgramExternalConnectivity": func() error { return w.publish(netID, endpoint, tcp("", 8080, 80)) },
		"RevokeExternalConnectivity": func() error {
			return w.driver.RevokeExternalConnectivity(&endpointRequest{NetworkID: netID, EndpointID: endpoint})
		},
	} {
		w.do(func() error {
			if err := call(); !errors.Is(err, errClosed) {
				t.Errorf("%s: %v, want that the driver ends", name, err)
			}
			return nil
		})
	}
	for _, ns := range []string{w.host, w.outside} {
		if left := nstest.Run(t, ns, "ip -o link"); !strings.Contains(left, host) {
			t.Errorf("%s is gone: %s", host, left)
		}
	}
	w.open()
	if n := w.driver.networks[netID]; n == nil || len(n.Endpoints) != 1 || n.Endpoints[endpoint] == nil || len(w.driver.networks) != 1 {
		t.Errorf("networks are %+v", w.driver.networks)
	}
}

// A second driver does not change the first one's networks, and the error about an invalid
// file names it.
func TestStore(t *testing.T) {
	w := newWorld(t)
	w.do(func() error {
		_, err := open(Options{Dir: w.dir, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "another driver uses it") {
			t.Errorf("a second driver: %v", err)
		}
		return nil
	})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.do(func() error {
		_, err := open(Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "x.json") {
			t.Errorf("a file that makes no sense: %v", err)
		}
		return nil
	})
}
