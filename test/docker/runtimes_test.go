package docker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
)

// Tests with Debian's other container engines: SCON finds their containers by name,
// their connections go express, and nothing is left of containers that are removed.

// want fails a test if a program is missing that install-deps.sh installs.
func want(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("no %s: scripts/install-deps.sh startup installs it", program)
	}
}

// edgeEcho echoes TCP and UDP at the edge until the end of the test.
func (m *Machine) edgeEcho(t *testing.T) {
	t.Helper()
	err := netns.Do(m.Edge(), func() error {
		udp, err := net.ListenPacket("udp4", fmt.Sprintf("%s:%d", edgeAddr, echoPort))
		if err != nil {
			return err
		}
		t.Cleanup(func() { udp.Close() })
		tcp, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", edgeAddr, echoPort))
		if err != nil {
			return err
		}
		t.Cleanup(func() { tcp.Close() })
		go echoUDP(udp)
		go echoTCP(tcp)
		return nil
	})
	if err != nil {
		t.Fatalf("listen at the edge: %v", err)
	}
}

// wantExpressFrom fails unless connections of a container to the edge go express.
// from is the path of its network namespace.
func (s *SCON) wantExpressFrom(t *testing.T, name, from string) {
	t.Helper()
	s.waitHooked(t, name)
	for _, proto := range []string{"tcp", "udp"} {
		conn, err := dial(from, proto+"4", fmt.Sprintf("%s:%d", edgeAddr, echoPort), patience)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		line := []byte("hello\n")
		s.waitExpress(t, to(name, proto, echoPort), func() {
			if _, err := conn.Write(line); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := io.ReadFull(conn, line); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		})
		conn.Close()
	}
}

// wantNone fails unless nothing of containers is left.
func (s *SCON) wantNone(t *testing.T) {
	t.Helper()
	eventually(t, "end of all containers", func() error {
		st := s.Status(t)
		if len(st.Containers) > 0 || len(st.Hooks) != 2 || st.Totals.Entries > 0 {
			return fmt.Errorf("containers %+v, hooks %+v, %d Conentries", st.Containers, st.Hooks, st.Totals.Entries)
		}
		return nil
	})
}

// writeRoot writes a root file system with busybox into a folder.
func writeRoot(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	var rootfs bytes.Buffer
	if err := (Image{}).Write(&rootfs); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("tar", "--extract", "--directory", folder)
	cmd.Stdin = &rootfs
	output(t, cmd)
	return folder
}

// netnsOf returns the path of the network namespace of a process on the machine.
func (m *Machine) netnsOf(pid string) string {
	return fmt.Sprintf("/proc/%d/root/proc/%s/ns/net", m.PID(), strings.TrimSpace(pid))
}

// In TestPodman Podman creates containers in networks of netavark.
func TestPodman(t *testing.T) {
	want(t, "podman")
	cgroup := fmt.Sprintf("scon-podman-%d", os.Getpid())
	t.Cleanup(func() { removeCgroups(t, cgroup) })
	m := newMachine(t)
	m.Sh(t, "mount -t tmpfs tmpfs /dev/shm") // Podman's locks
	podman := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(output(t, m.Command("podman", append([]string{
			"--root=/run/podman-data", "--runroot=/run/podman-run", "--tmpdir=/run/podman", "--network-config-dir=/run/podman-net",
			"--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none", "--network-backend=netavark",
		}, args...)...)))
	}
	root := writeRoot(t)
	run := func(name string, options ...string) {
		t.Helper()
		args := append([]string{"run", "--detach", "--name", name, "--cgroup-parent=/" + cgroup}, options...)
		podman(append(args, "--rootfs", root, "sleep", "600")...)
		t.Cleanup(func() { // fails if the test removed it
			_ = m.Command("podman", "--root=/run/podman-data", "--runroot=/run/podman-run", "rm", "--force", "--time=0", name).Run()
		})
	}
	pid := func(name string) string { return podman("inspect", "--format", "{{.State.Pid}}", name) }

	m.edgeEcho(t)
	s := newSCON(t, m)
	run("first")
	s.wantExpressFrom(t, "first", m.netnsOf(pid("first")))
	podman("network", "create", "--disable-dns", "blue") // without aardvark-dns netavark cannot take one with names down
	run("second", "--network", "blue")
	s.wantExpressFrom(t, "second", m.netnsOf(pid("second")))
	podman("rm", "--force", "--time=0", "second")
	s.waitGone(t, "second")
	run("sharing", "--network", "container:first") // as in a pod
	s.wantExpressFrom(t, "first", m.netnsOf(pid("sharing")))
	podman("rm", "--force", "--time=0", "sharing")
	podman("rm", "--force", "--time=0", "first")
	s.wantNone(t)
}

// In TestLXC LXC starts a container on its bridge lxcbr0.
func TestLXC(t *testing.T) {
	want(t, "lxc-start")
	m := newMachine(t)
	m.Sh(t, `mkdir /run/lxc-data
		ip link add lxcbr0 type bridge
		ip address add 10.0.3.1/24 dev lxcbr0
		ip link set lxcbr0 up
		sysctl -qw net.ipv4.ip_forward=1
		nft add table ip lxc
		nft "add chain ip lxc postrouting { type nat hook postrouting priority 100 ; }"
		nft add rule ip lxc postrouting ip saddr 10.0.3.0/24 oifname uplink masquerade`)
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`lxc.uts.name = web
lxc.rootfs.path = dir:%s
lxc.init.cmd = /bin/sleep 600
lxc.apparmor.profile = unconfined
lxc.net.0.type = veth
lxc.net.0.link = lxcbr0
lxc.net.0.flags = up
lxc.net.0.ipv4.address = 10.0.3.2/24
lxc.net.0.ipv4.gateway = 10.0.3.1
`, writeRoot(t))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lxc := func(verb string, args ...string) string {
		t.Helper()
		return output(t, m.Command("lxc-"+verb, append([]string{"--name=web", "--lxcpath=/run/lxc-data"}, args...)...))
	}
	m.edgeEcho(t)
	s := newSCON(t, m)
	for range 2 {
		lxc("start", "--rcfile="+config)
		t.Cleanup(func() { _ = m.Command("lxc-stop", "--name=web", "--lxcpath=/run/lxc-data", "--kill").Run() })
		s.wantExpressFrom(t, "web", m.netnsOf(lxc("info", "--pid", "--no-humanize")))
		lxc("stop", "--kill")
		s.wantNone(t)
	}
}

// stockNetworks are lists for CNI's reference plugins: a bridge with the name that k3s
// and flannel use, a route to each pod, and the list that nerdctl writes for its network.
var stockNetworks = map[string]string{
	"bridge": `{"cniVersion": "1.0.0", "name": "stock", "plugins": [{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
		"ipMasq": true, "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "/run/cni-leases", "subnet": "10.98.0.0/24"}}]}`,
	"ptp": `{"cniVersion": "1.0.0", "name": "stock", "plugins": [{"type": "ptp", "ipMasq": true,
		"ipam": {"type": "host-local", "dataDir": "/run/cni-leases", "subnet": "10.98.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]}`,
	"nerdctl": `{"cniVersion": "1.0.0", "name": "bridge", "plugins": [
		{"type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
		 "ipam": {"type": "host-local", "dataDir": "/run/cni-leases", "ranges": [[{"subnet": "10.98.0.0/24", "gateway": "10.98.0.1"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "portmap", "capabilities": {"portMappings": true}},
		{"type": "firewall", "ingressPolicy": "same-bridge"},
		{"type": "tuning"}]}`,
}

// In TestStockPlugins containerd starts pods in networks of CNI's reference plugins.
func TestStockPlugins(t *testing.T) {
	for name, network := range stockNetworks {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.WriteFile(listOf(folder), []byte(network), 0o600); err != nil {
				t.Fatal(err)
			}
			c := startContainerd(t, folder)
			c.edgeEcho(t)
			s := newSCON(t, c.Machine)
			pods := make(map[string]string)
			for _, pod := range []string{"first", "second"} {
				pods[pod] = c.run(t, pod, "")
				listed := "test/" + pod // the namespace of Kubernetes is c.pod's
				s.wantExpressFrom(t, listed, c.podNetns(t, pods[pod]))
				got, _ := s.container(t, listed)
				if want := map[string]string{"bridge": "cni0", "nerdctl": "nerdctl0"}[name]; got.Bridge != want {
					t.Errorf("%s is on bridge %q, want %q", pod, got.Bridge, want)
				}
			}
			for _, id := range pods {
				if err := c.remove(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			s.wantNone(t)
		})
	}
}

// podNetns returns the path of a pod's network namespace.
func (c *Containerd) podNetns(t *testing.T, id string) string {
	t.Helper()
	out := output(t, c.Command("ctr", "--namespace", "k8s.io", "container", "info", id))
	var info struct {
		Spec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		t.Fatal(err)
	}
	for _, ns := range info.Spec.Linux.Namespaces {
		if ns.Type == "network" {
			// /var/run is a link, which would resolve to a path of the host.
			return fmt.Sprintf("/proc/%d/root%s", c.PID(), strings.TrimPrefix(ns.Path, "/var"))
		}
	}
	t.Fatalf("pod %s has no network namespace of its own", id)
	return ""
}
