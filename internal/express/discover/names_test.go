package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

var (
	idA = strings.Repeat("0123456789abcdef", 4)
	idB = strings.Repeat("fedcba9876543210", 4)
	idC = strings.Repeat("00112233445566ff", 4)
	idD = strings.Repeat("ff66554433221100", 4)
)

func TestParseCgroup(t *testing.T) {
	for _, tc := range []struct{ name, text, runtime, id string }{
		{"host", "0::/user.slice/user-0.slice/session-1.scope\n", "", ""},
		{"nothing", "", "", ""},
		{"Docker, systemd", "0::/system.slice/docker-" + idA + ".scope\n", "docker", idA},
		{"Docker, cgroupfs", "0::/docker/" + idA + "\n", "docker", idA},
		{"Docker, version 1", "9:name=systemd:/docker/" + idA + "\n8:pids:/docker/" + idA + "\n0::/\n", "docker", idA},
		{"Docker, systemd inside", "0::/docker/" + idA + "/init.scope\n", "docker", idA},
		{"Docker in Docker", "0::/docker/" + idA + "/docker/" + idB + "\n", "docker", idA},
		{"Docker where the daemon is in a container", "0::/docker/" + idD + "/docker/" + idB + "\n", "docker", idB},
		{"a cgroup that a container has made", "0::/lxc.payload.web/docker-" + idA + ".scope\n", "lxc", "web"},
		{"one with the name of another container", "0::/lxc.payload.web/lxc.payload.other/lxc/other\n", "lxc", "web"},
		{"one below Podman's", "0::/machine.slice/libpod-" + idA + ".scope/container/docker/" + idB + "\n", "podman", idA},
		{"Podman, systemd", "0::/machine.slice/libpod-" + idA + ".scope/container\n", "podman", idA},
		{"Podman, cgroupfs", "0::/libpod_parent/libpod-" + idA + "\n", "podman", idA},
		{"Podman's monitor", "0::/machine.slice/libpod-conmon-" + idA + ".scope\n", "", ""},
		{"containerd, CRI", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/" +
			"cri-containerd-" + idA + ".scope\n", "containerd", idA},
		{"containerd, cgroupfs", "5:cpu:/kubepods/burstable/pod1-2-3/" + idA + "\n", "containerd", idA},
		{"nerdctl", "0::/system.slice/nerdctl-" + idA + ".scope\n", "containerd", idA},
		{"nerdctl, cgroupfs", "0::/default/" + idA + "\n", "containerd", idA},
		{"CRI-O", "0::/kubepods.slice/crio-" + idA + ".scope\n", "cri-o", idA},
		{"LXC", "0::/lxc.payload.web/init.scope\n", "lxc", "web"},
		{"LXC, version 1", "3:cpuset:/lxc/web\n", "lxc", "web"},
		{"not quite an identifier", "0::/docker/" + idA[:63] + "\n", "", ""},
	} {
		if runtime, id := parseCgroup(tc.text, map[string]bool{idD: true}); runtime != tc.runtime || id != tc.id {
			t.Errorf("%s: got %q %q, want %q %q", tc.name, runtime, id, tc.runtime, tc.id)
		}
	}
}

// named is a container's namespace, its port in another one, and a namer that
// finds made-up processes and engines.
type named struct {
	t     testing.TB
	d     *device
	port  Port
	namer *Namer
}

func newNamed(t *testing.T) *named {
	n := &named{t: t, d: newDevice(t), namer: NewNamer()}
	t.Cleanup(func() { n.namer.Close() })
	n.port = n.d.scan(Options{}).Ports[0]
	dir := t.TempDir()
	n.namer.at = places{
		proc:       dir,
		docker:     filepath.Join(dir, "docker.sock"),
		podman:     filepath.Join(dir, "podman.sock"),
		containerd: filepath.Join(dir, "task"),
		netns:      []string{filepath.Join(dir, "netns"), filepath.Join(dir, "docker-netns")},
	}
	return n
}

// write makes a file at a path below the namer's places.
func (n *named) write(path, text string) {
	n.t.Helper()
	path = filepath.Join(n.namer.at.proc, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// link makes a file below the namer's places that is a namespace.
func (n *named) link(path, ns string) {
	n.t.Helper()
	path = filepath.Join(n.namer.at.proc, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Symlink(netns.Path(ns), path); err != nil {
		n.t.Fatal(err)
	}
}

// process makes up a process in a namespace and a cgroup.
func (n *named) process(pid int, ns, cgroup string) {
	n.write(fmt.Sprintf("%d/cgroup", pid), "0::"+cgroup+"\n")
	n.link(fmt.Sprintf("%d/ns/net", pid), ns)
}

// task makes up the OCI configuration that containerd writes for a container of a pod in
// the Kubernetes namespace shop.
func (n *named) task(id, kind, pod, container string) {
	annotations := map[string]string{criType: kind, criNamespace: "shop", criPod: pod}
	if container != "" {
		annotations[criContainer] = container
		annotations[criImage] = "shop/" + container + ":1"
	}
	config, err := json.Marshal(map[string]any{"hostname": pod, "annotations": annotations})
	if err != nil {
		n.t.Fatal(err)
	}
	n.write("task/k8s.io/"+id+"/config.json", string(config))
}

// engine makes up a container engine that knows one container.
func (n *named) engine(socket, id, name string) {
	n.t.Helper()
	n.answer(socket, id, fmt.Appendf(nil, `{"Id": %q, "Name": "/%s"}`, id, name))
}

// identify searches once, from the device's namespace.
func (n *named) identify() (c Container) {
	n.t.Helper()
	nstest.Do(n.t, n.d.ns, func() { c = n.namer.identify(n.port) })
	return c
}

func TestIdentify(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(*named)
		want  Container // paths without what comes before them
	}{
		{"nobody", func(*named) {}, Container{Name: "vc"}},
		{
			"a Swarm's load balancer",
			func(n *named) { n.link("docker-netns/ingress_sbox", n.d.c) },
			Container{Name: "ingress_sbox", Runtime: "netns", Netns: "docker-netns/ingress_sbox"},
		},
		{
			"another namespace of Docker's",
			func(n *named) { n.link("docker-netns/0123456789ab", n.d.c) },
			Container{Name: "vc", Netns: "docker-netns/0123456789ab"},
		},
		{
			"a process of nobody's",
			func(n *named) { n.process(42, n.d.c, "/system.slice") },
			Container{Name: "vc", Netns: "42/ns/net", PID: 42},
		},
		{
			"Docker without its engine",
			func(n *named) { n.process(42, n.d.c, "/docker/"+idA) },
			Container{Name: idA[:12], ID: idA, Runtime: "docker", Netns: "42/ns/net", PID: 42, Unknown: true},
		},
		{
			"Docker",
			func(n *named) {
				n.process(42, n.d.c, "/docker/"+idA)
				n.link("docker-netns/0123", n.d.c)
				n.engine(n.namer.at.docker, idA, "web")
			},
			Container{Name: "web", ID: idA, Runtime: "docker", Netns: "docker-netns/0123", PID: 42},
		},
		{
			"Docker that does not know it",
			func(n *named) {
				n.process(42, n.d.c, "/docker/"+idA)
				n.engine(n.namer.at.docker, idB, "other")
			},
			Container{Name: idA[:12], ID: idA, Runtime: "docker", Netns: "42/ns/net", PID: 42, Unknown: true},
		},
		{
			"Docker with a cgroup parent",
			func(n *named) {
				n.process(42, n.d.c, "/mine/"+idA)
				n.engine(n.namer.at.docker, idA, "web")
			},
			Container{Name: "web", ID: idA, Runtime: "docker", Netns: "42/ns/net", PID: 42},
		},
		{
			"Podman",
			func(n *named) {
				n.process(42, n.d.c, "/machine.slice/libpod-"+idA+".scope")
				n.engine(n.namer.at.podman, idA, "web")
			},
			Container{Name: "web", ID: idA, Runtime: "podman", Netns: "42/ns/net", PID: 42},
		},
		{
			"Podman without its service",
			func(n *named) {
				n.process(42, n.d.c, "/machine.slice/libpod-"+idA+".scope")
				n.write("42/stat", "42 (a) b) S 41 42 42 0")
				n.write("41/stat", "41 (crun) S 40 41 41 0")
				n.write("41/cmdline", "/usr/bin/crun\x00create\x00")
				n.write("40/cmdline", "/usr/bin/conmon\x00--api-version\x001\x00-n\x00web\x00")
			},
			Container{Name: "web", ID: idA, Runtime: "podman", Netns: "42/ns/net", PID: 42, Unknown: true},
		},
		{
			"Podman, and a process of the container that calls itself its monitor",
			func(n *named) {
				n.process(42, n.d.c, "/machine.slice/libpod-"+idA+".scope")
				n.process(43, n.d.c, "/machine.slice/libpod-"+idA+".scope/container")
				n.write("42/stat", "42 (sh) S 43 42 42 0")
				n.write("43/stat", "43 (conmon) S 44 43 43 0")
				n.write("43/cmdline", "conmon\x00-n\x00other\x00")
				n.write("44/cmdline", "/usr/bin/conmon\x00-n\x00web\x00")
			},
			Container{Name: "web", ID: idA, Runtime: "podman", Netns: "42/ns/net", PID: 42, Unknown: true},
		},
		{
			"a container that has made cgroups with the names of others",
			func(n *named) {
				n.process(42, n.d.c, "/lxc.payload.web/docker-"+idB+".scope")
				n.engine(n.namer.at.docker, idB, "other")
			},
			Container{Name: "web", ID: "web", Runtime: "lxc", Netns: "42/ns/net", PID: 42},
		},
		{
			"a container beside the daemon's",
			func(n *named) {
				n.write("self/cgroup", "0::/docker/"+idD+"/init.scope\n")
				n.process(42, n.d.c, "/docker/"+idD+"/docker/"+idA)
				n.engine(n.namer.at.docker, idA, "web")
			},
			Container{Name: "web", ID: idA, Runtime: "docker", Netns: "42/ns/net", PID: 42},
		},
		{
			"Podman whose monitor is gone",
			func(n *named) {
				n.process(42, n.d.c, "/machine.slice/libpod-"+idA+".scope")
				n.write("42/stat", "42 (sh) S 1 42 42 0")
				n.write("1/cmdline", "/sbin/init\x00-n\x00web\x00")
			},
			Container{Name: idA[:12], ID: idA, Runtime: "podman", Netns: "42/ns/net", PID: 42, Unknown: true},
		},
		{
			"containerd",
			func(n *named) {
				n.process(42, n.d.c, "/default/"+idA)
				n.write("task/default/"+idA+"/config.json", `{"hostname": "h", "annotations": {"nerdctl/name": "web"}}`)
			},
			Container{Name: "web", ID: idA, Runtime: "containerd", Netns: "42/ns/net", PID: 42, Labels: map[string]string{"nerdctl/name": "web"}},
		},
		{
			"a pod",
			func(n *named) {
				n.process(43, n.d.c, "/kubepods/pod1/"+idB)
				n.process(42, n.d.c, "/kubepods/pod1/"+idA)
				n.link("netns/cni-1", n.d.c)
				n.write("task/k8s.io/"+idA+"/config.json", `{"annotations": {"io.kubernetes.cri.sandbox-name": "web-0"}}`)
			},
			Container{Name: "web-0", ID: idA, Runtime: "containerd", Netns: "netns/cni-1", PID: 42, Labels: map[string]string{"io.kubernetes.cri.sandbox-name": "web-0"}},
		},
		{
			"a pod with containers",
			func(n *named) {
				n.process(44, n.d.c, "/kubepods/pod1/"+idB) // it has just been started
				n.process(43, n.d.c, "/kubepods/pod1/"+idC)
				n.process(42, n.d.c, "/kubepods/pod1/"+idC)
				n.process(45, n.d.c, "/kubepods/pod1/"+idA)
				n.process(46, n.d.c, "/kubepods/pod2/"+idD)
				n.task(idA, criSandbox, "web-0", "")
				n.task(idB, "container", "web-0", "log")
				n.task(idC, "container", "web-0", "app")
				n.task(idD, "container", "other-0", "stranger")
			},
			Container{
				Name: "shop/web-0/app+log", Pod: "shop/web-0", ID: idA, Runtime: "containerd", Netns: "42/ns/net", PID: 45,
				Origin: Origin{Image: "shop/app:1+shop/log:1"},
				Labels: map[string]string{criType: criSandbox, criNamespace: "shop", criPod: "web-0"},
			},
		},
		{
			"a pod without containers",
			func(n *named) {
				n.process(42, n.d.c, "/kubepods/pod1/"+idA)
				n.task(idA, criSandbox, "web-0", "")
			},
			Container{
				Name: "shop/web-0", Pod: "shop/web-0", ID: idA, Runtime: "containerd", Netns: "42/ns/net", PID: 42,
				Labels: map[string]string{criType: criSandbox, criNamespace: "shop", criPod: "web-0"},
			},
		},
		{
			"a tool of the host's besides a container",
			func(n *named) {
				n.process(41, n.d.c, "/system.slice")
				n.process(42, n.d.c, "/docker/"+idA)
			},
			Container{Name: idA[:12], ID: idA, Runtime: "docker", Netns: "41/ns/net", PID: 42, Unknown: true},
		},
		{
			"processes elsewhere",
			func(n *named) {
				n.process(42, n.d.outside, "/docker/"+idA)
				n.process(43, n.d.ns, "/docker/"+idB)
			},
			Container{Name: "vc"},
		},
		{
			"a namespace of ip's",
			func(n *named) { n.link("netns/blue", n.d.c) },
			Container{Name: "blue", Runtime: "netns", Netns: "netns/blue"},
		},
		{
			"a namespace that awaits its container",
			func(n *named) { n.link("netns/cni-1", n.d.c) },
			Container{Name: "vc", Netns: "netns/cni-1"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNamed(t)
			tc.setup(n)
			got := n.identify()
			got.Netns = strings.TrimPrefix(got.Netns, n.namer.at.proc+"/")
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestEngineThatHangs(t *testing.T) {
	n := newNamed(t)
	n.process(42, n.d.c, "/docker/"+idA)
	l, err := net.Listen("unix", n.namer.at.docker) // accepts and is silent
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := n.identify(); got.ID != idA || got.Name != idA[:12] {
		t.Errorf("got %+v", got)
	}
}

func TestNameAwaitsContainer(t *testing.T) {
	n := newNamed(t)
	started := time.AfterFunc(2*firstWait, func() { n.process(42, n.d.c, "/docker/"+idA) })
	defer started.Stop()
	var c Container
	nstest.Do(t, n.d.ns, func() { c = n.namer.Name(t.Context(), n.port) })
	if c.ID != idA {
		t.Errorf("got %+v, want the container that started meanwhile", c)
	}
}

func TestNumberIsGivenAnew(t *testing.T) {
	n := newNamed(t)
	n.process(42, n.d.c, "/docker/"+idA)
	if got := n.identify(); got.ID != idA {
		t.Fatalf("got %+v", got)
	}
	// The next container gets the number of the one that is gone.
	n.d.run("ip link del vc")
	if err := os.RemoveAll(filepath.Join(n.namer.at.proc, "42")); err != nil {
		t.Fatal(err)
	}
	if err := netns.Delete(n.d.c); err != nil {
		t.Fatal(err)
	}
	next := nstest.New(t)
	n.d.run(fmt.Sprintf("ip link add vn type veth peer name eth0 netns %s\nip link set vn master br0", next))
	n.process(43, next, "/docker/"+idB)
	n.port = n.d.scan(Options{}).Ports[0]
	time.Sleep(2 * fresh)
	if got := n.identify(); got.ID != idB {
		t.Errorf("got %+v, want the new container", got)
	}
}

// Ports of namespaces that nothing names, however many, do not have all namespaces listed
// for each.
func TestUnknownNamespaces(t *testing.T) {
	n := newNamed(t)
	const ports = 100
	lists := make(map[time.Time]bool)
	nstest.Do(t, n.d.ns, func() {
		for nsid := range ports {
			n.namer.namespace(1000 + nsid)
			lists[n.namer.listed.end], lists[n.namer.renewed.end] = true, true
		}
	})
	if len(lists) > ports/2 {
		t.Errorf("all namespaces were listed %d times for %d ports", len(lists), ports)
	}
}

// A container's new name is known when its engine says so, and after each loss of the
// engine's events. An engine that has known no container is not asked for events.
func TestRenamed(t *testing.T) {
	n := newNamed(t)
	n.process(42, n.d.c, "/docker/"+idA)
	var name atomic.Value
	name.Store("web")
	events, asked := make(chan string), make(chan string, 8)
	serve := func(socket string) {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /containers/{id}/json", func(w http.ResponseWriter, r *http.Request) {
			if r.PathValue("id") != idA || socket != n.namer.at.docker {
				http.NotFound(w, r)
				return
			}
			fmt.Fprintf(w, `{"Id": %q, "Name": "/%s"}`, idA, name.Load())
		})
		mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
			asked <- socket + " " + r.URL.Query().Get("filters")
			_ = http.NewResponseController(w).Flush()
			for {
				select {
				case line, more := <-events:
					if !more {
						return
					}
					fmt.Fprintln(w, line)
					_ = http.NewResponseController(w).Flush()
				case <-r.Context().Done():
					return
				}
			}
		})
		server := &http.Server{Handler: mux}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { server.Close() })
	}
	serve(n.namer.at.docker)
	serve(n.namer.at.podman)
	ctx, stop := context.WithCancel(t.Context())
	renamed := make(chan string, 8)
	n.namer.Follow(ctx, func(id string) { renamed <- id })
	t.Cleanup(func() { stop(); n.namer.Unfollow() })

	if c := n.identify(); c.Name != "web" {
		t.Fatalf("got %+v", c)
	}
	if got, want := <-asked, n.namer.at.docker+` {"type":["container","network"],"event":["rename","connect","disconnect"]}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	if id := <-renamed; id != "" {
		t.Errorf("first %q, want all names anew", id)
	}
	name.Store("shop")
	for _, nonsense := range []string{"", "{", "[]", `{"Actor": {"ID": "../../etc"}}`} {
		events <- nonsense
	}
	events <- `{"Type": "container", "Action": "rename", "Actor": {"ID": "` + idA + `", "Attributes": {"name": "shop", "oldName": "/web"}}}`
	if id := <-renamed; id != idA {
		t.Errorf("renamed %q, want %s", id, idA)
	}
	if c := n.identify(); c.Name != "shop" {
		t.Errorf("after the event: %q", c.Name)
	}
	for _, action := range []string{"connect", "disconnect"} {
		events <- `{"Type": "network", "Action": "` + action + `", "Actor": {"ID": "` + idB + `", "Attributes": {"container": "` + idA + `", "name": "web", "type": "overlay"}}}`
		if id := <-renamed; id != idA {
			t.Errorf("%s: %q is named anew, want the container %s", action, id, idA)
		}
	}
	// An event without end loses the stream, not the memory; the next one is opened.
	go func() { events <- strings.Repeat("x", mostEvent+1) }()
	if id := <-renamed; id != "" {
		t.Errorf("after a lost stream %q, want all names anew", id)
	}
	if got := <-asked; !strings.HasPrefix(got, n.namer.at.docker) || len(asked) != 0 {
		t.Errorf("asked %s for events, and %d more", got, len(asked))
	}
}

// The real places: a namespace that ip(8) knows, with a process of this test
// in none of its cgroups.
func TestNameOfNamedNamespace(t *testing.T) {
	d := newDevice(t)
	port := d.scan(Options{}).Ports[0]
	var c Container
	nstest.Do(t, d.ns, func() {
		n := NewNamer()
		defer n.Close()
		c = n.Name(t.Context(), port)
	})
	if want := (Container{Name: d.c, Runtime: "netns", Netns: netns.Path(d.c)}); !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
}

func BenchmarkScanNamespaces(b *testing.B) {
	n := NewNamer()
	defer n.Close()
	for b.Loop() {
		n.listed = pace{}
		n.namespace(0)
	}
}
