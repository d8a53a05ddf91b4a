// Package k8s runs a real Kubernetes of two nodes on this machine, installs SCON's chart,
// and sends traffic between pods: `make test-k8s`.
package k8s

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/lab/vm"
)

var (
	whole = flag.Bool("cluster", false, "start clusters; otherwise all tests are skipped")
	mode  = flag.String("proxy", "nftables", "mode of kube-proxy: nftables or iptables")
)

// version of Kubernetes, as in tools/go.mod.
const version = "v1.37.2"

// build builds a program of a module of tools, or finds it among those that were built.
func build(t *testing.T, module, program, name string, flags string) string {
	t.Helper()
	dir, err := vm.Cached("tools", name, func(dir string) error {
		t.Logf("building %s: minutes", name)
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w "+flags, "-o", dir+"/", program)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", program, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// images makes archives of the images that pods have.
func images(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	var all []string
	for name, program := range map[string]string{"scon": "./cmd/scon", "load": "./test/k8s/load"} {
		cmd := exec.Command("go", "build", "-trimpath", "-tags", "nethttpomithttp2", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), program)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", program, err, out)
		}
		file := fmt.Sprintf("FROM scratch\nCOPY %s /usr/bin/%s\nENTRYPOINT [\"/usr/bin/%s\"]\nCMD [\"pause\"]\n", name, name, name)
		if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		image, archive := "localhost/"+name+":test", filepath.Join(dir, name+".tar")
		run(t, "podman", "build", "--quiet", "--isolation", "chroot", "--tag", image, dir)
		run(t, "podman", "save", "--quiet", "--format", "docker-archive", "--output", archive, image)
		run(t, "podman", "rmi", "--force", image)
		all = append(all, archive)
	}
	return all
}

// helm runs Helm in the cluster's network.
func (c *cluster) helm(program string, args ...string) {
	c.t.Helper()
	args = append([]string{"--target", strconv.Itoa(c.pids[1]), "--net", program, "--kubeconfig", c.dir + "/admin.kubeconfig", "--namespace", "scon-system"}, args...)
	run(c.t, "nsenter", args...)
}

// pods are a server on node 1, and clients on both.
const pods = `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: echo, image: "localhost/load:test", imagePullPolicy: Never, args: [serve, "7000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: near}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "localhost/load:test", imagePullPolicy: Never, args: [pause]}]
---
apiVersion: v1
kind: Pod
metadata: {name: far}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "localhost/load:test", imagePullPolicy: Never, args: [pause]}]
---
apiVersion: v1
kind: Pod
metadata: {name: plain, annotations: {scon.dev/forward: regular}}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "localhost/load:test", imagePullPolicy: Never, args: [pause]}]
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec:
  type: NodePort
  selector: {app: server}
  ports:
  - {name: tcp, protocol: TCP, port: 80, targetPort: 7000, nodePort: 30070}
  - {name: udp, protocol: UDP, port: 80, targetPort: 7000, nodePort: 30070}
`

// streamed is what `load stream` counts.
type streamed struct {
	tcp, back, wrong, udp, lost uint64
	which                       string
}

// stream sends from a pod to an address.
func (c *cluster) stream(pod, to string, seconds int) (s streamed, err error) {
	out, err := c.try("exec", pod, "--", "/usr/bin/load", "stream", to, strconv.Itoa(seconds))
	if err != nil {
		return s, err
	}
	before, last, _ := strings.Cut(out, "tcp ") // on standard error: which datagrams are lost
	s.which = before
	_, err = fmt.Sscanf("tcp "+last, "tcp %d back %d wrong %d udp %d lost %d", &s.tcp, &s.back, &s.wrong, &s.udp, &s.lost)
	return s, err
}

// check fails unless everything came back.
func (s streamed) check(t *testing.T, what string, err error) {
	t.Helper()
	t.Logf("%-34s %9d bytes, lost %d; %5d datagrams, lost %d", what, s.tcp, s.tcp-s.back+s.wrong, s.udp, s.lost)
	if err != nil || s.tcp == 0 || s.back != s.tcp || s.wrong != 0 || s.lost != 0 {
		t.Errorf("%s: %+v, %v", what, s, err)
	}
}

// daemonOn returns the daemon's pod on a node.
func (c *cluster) daemonOn(n int) string {
	c.t.Helper()
	return strings.TrimSpace(c.kubectl("-n", "scon-system", "get", "pods", "-l", "app.kubernetes.io/component=daemon",
		"--field-selector", fmt.Sprintf("spec.nodeName=node%d", n), "-o", "jsonpath={.items[0].metadata.name}"))
}

// status is what `scon status` says in the daemon's pod of a node.
func (c *cluster) status(n int) (s api.Status) {
	c.t.Helper()
	out := c.kubectl("-n", "scon-system", "exec", c.daemonOn(n), "-c", "scon", "--", "/usr/bin/scon", "status", "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	return s
}

func TestCluster(t *testing.T) {
	if !*whole {
		t.Skip("make test-k8s starts clusters")
	}
	begin := time.Now()
	bin := build(t, "tools", "./hyper", "hyper-"+version,
		"-X k8s.io/component-base/version.gitVersion="+version+" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37")
	helm := filepath.Join(build(t, "../helm/tools", "helm.sh/helm/v4/cmd/helm", "helm-v4.3.1", ""), "helm")
	archives := images(t)
	since := func(what string) { t.Logf("%6.1f s  %s", time.Since(begin).Seconds(), what) }
	since("programs and images")
	c := start(t, bin, *mode, archives)
	since("two nodes are ready, kube-proxy with " + *mode)

	c.helm(helm, "install", "scon", "../../packaging/helm/scon", "--create-namespace", "--set", "image.tag=test,image.pullPolicy=Never,settings.admit=4", "--wait", "--timeout", "3m")
	since("the chart is installed")
	c.apply(pods)
	c.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
	since("pods are ready")
	addr := strings.TrimSpace(c.kubectl("get", "pod", "server", "-o", "jsonpath={.status.podIP}"))
	cluster := strings.TrimSpace(c.kubectl("get", "service", "server", "-o", "jsonpath={.spec.clusterIP}"))

	before := [3]api.Status{1: c.status(1), 2: c.status(2)}
	for _, way := range []struct{ what, pod, to string }{
		{"pod to pod, one node", "near", addr + ":7000"},
		{"pod to pod, two nodes", "far", addr + ":7000"},
		{"ClusterIP", "far", cluster + ":80"},
		{"NodePort", "far", "10.200.0.11:30070"},
	} {
		s, err := c.stream(way.pod, way.to, 3)
		s.check(t, way.what, err)
	}
	for n := 1; n <= 2; n++ {
		now := c.status(n)
		express := now.Totals.ExpressPackets - before[n].Totals.ExpressPackets
		regular := now.Totals.RegularPackets - before[n].Totals.RegularPackets
		t.Logf("node%d: %d packets express, %d regular: %.1f %% express", n, express, regular, 100*float64(express)/float64(express+regular))
		if express < 1000 {
			t.Errorf("node%d: %d packets went express", n, express)
		}
	}
	t.Run("names", func(t *testing.T) { c.in(t).testNames() })
	t.Run("rule", func(t *testing.T) { c.in(t).testRule(addr) })
	t.Run("rollout", func(t *testing.T) { c.in(t).testRollout(helm, addr) })
	since("a rolling update while pods exchange data")
	t.Run("services", func(t *testing.T) { c.in(t).testServices(addr) })
	since("Services that come and go")
	t.Run("uninstall", func(t *testing.T) { c.in(t).testUninstall(helm, addr) })
	since("the chart is uninstalled")
}

// in is the cluster for a part of the test.
func (c *cluster) in(t *testing.T) *cluster {
	part := *c
	part.t = t
	return &part
}

// Pods have the names of Kubernetes, and one with the annotation stays regular.
func (c *cluster) testNames() {
	want := map[int][]string{1: {"default/server/echo", "default/near/client"}, 2: {"default/far/client", "default/plain/client"}}
	for n, names := range want {
		c.await("names of pods", func() error {
			found := make(map[string]bool)
			for _, container := range c.status(n).Containers {
				found[container.Name] = true
			}
			for _, name := range names {
				if !found[name] {
					return fmt.Errorf("node%d has %v, not %s", n, found, name)
				}
			}
			return nil
		})
	}
	out := c.kubectl("-n", "scon-system", "exec", c.daemonOn(2), "-c", "scon", "--", "/usr/bin/scon", "explain", "default/plain/client")
	if !strings.Contains(out, "scon.dev/forward=regular") {
		c.t.Errorf("the pod with the annotation: %s", out)
	}
}

// A rule that is put in while a stream is express stops it, and its packets pass again
// when the rule is gone: nothing is lost of the stream.
func (c *cluster) testRule(addr string) {
	done := make(chan error, 1)
	var s streamed
	go func() {
		var err error
		s, err = c.stream("far", addr+":7000", 8)
		done <- err
	}()
	time.Sleep(2 * time.Second)
	c.inNode(2, `nft -f - <<'RULES'
table ip guard {
	chain forward {
		type filter hook forward priority 0; policy accept;
		ip daddr `+addr+` udp dport 7000 counter name blocked drop
	}
	counter blocked { }
}
RULES`)
	time.Sleep(2 * time.Second)
	out := c.inNode(2, "nft list counter ip guard blocked; nft delete table ip guard")
	err := <-done
	c.t.Logf("rule in mid-stream: %+v", s)
	if err != nil || s.back != s.tcp || s.wrong != 0 || s.lost < 100 || strings.Contains(out, "packets 0 ") {
		c.t.Errorf("%+v, %v; the rule counted %s", s, err, out)
	}
}

// The chart's pods are replaced while a stream is express: nothing is lost, and its
// Conentries are taken over.
func (c *cluster) testRollout(helm, addr string) {
	type result struct {
		streamed
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := c.stream("far", addr+":7000", 40)
		done <- result{s, err}
	}()
	time.Sleep(3 * time.Second)
	old := c.daemonOn(2)
	begin := time.Now()
	c.helm(helm, "upgrade", "scon", "../../packaging/helm/scon", "--reuse-values", "--set", "podAnnotations.rolled=yes", "--wait", "--timeout", "3m")
	c.kubectl("-n", "scon-system", "rollout", "status", "daemonset/scon", "--timeout=120s")
	c.t.Logf("rolled out in %.1f s", time.Since(begin).Seconds())
	if c.daemonOn(2) == old {
		c.t.Error("the pod was not replaced")
	}
	for n := 1; n <= 2; n++ {
		log := c.kubectl("-n", "scon-system", "logs", c.daemonOn(n), "-c", "scon")
		i := strings.Index(log, "took over Conentries")
		if i < 0 || strings.Contains(log[i:], "kept=0") {
			c.t.Errorf("node%d took nothing over:\n%s", n, log)
			continue
		}
		line, _, _ := strings.Cut(log[i:], "\n")
		c.t.Logf("node%d: %s", n, line)
	}
	r := <-done
	r.check(c.t, "during a rolling update", r.err)
}

// Services come and go while a stream is express.
func (c *cluster) testServices(addr string) {
	done := make(chan error, 1)
	var s streamed
	go func() {
		var err error
		s, err = c.stream("far", addr+":7000", 20)
		done <- err
	}()
	const services = 200
	var all strings.Builder
	for i := range services {
		fmt.Fprintf(&all, "---\napiVersion: v1\nkind: Service\nmetadata: {name: churn-%d, labels: {churn: yes}}\nspec: {selector: {app: server}, ports: [{port: 80, targetPort: 7000}]}\n", i)
	}
	begin := time.Now()
	c.write("services.yaml", strings.ReplaceAll(all.String(), "churn: yes", `churn: "yes"`))
	c.kubectl("create", "-f", filepath.Join(c.dir, "services.yaml"))
	c.kubectl("delete", "services", "-l", "churn=yes", "--wait=false")
	c.t.Logf("%d Services came and went in %.1f s", services, time.Since(begin).Seconds())
	err := <-done
	s.check(c.t, "while Services come and go", err)
}

// Without the chart nothing of SCON is left on a node, and connections go on.
func (c *cluster) testUninstall(helm, addr string) {
	done := make(chan error, 1)
	var s streamed
	go func() {
		var err error
		s, err = c.stream("far", addr+":7000", 30)
		done <- err
	}()
	time.Sleep(2 * time.Second)
	c.helm(helm, "uninstall", "scon", "--wait", "--timeout", "3m")
	c.await("pods of the chart are gone", func() error {
		out, err := c.try("-n", "scon-system", "get", "pods", "--no-headers", "--ignore-not-found")
		if err == nil && strings.TrimSpace(out) != "" && !strings.Contains(out, "No resources") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	for n := 1; n <= 2; n++ {
		left := c.inNode(n, "ls -A /sys/fs/bpf | grep -v '[.]debug$'; tc qdisc show | grep clsact || true")
		if left = strings.TrimSpace(left); left != "" {
			c.t.Errorf("node%d has left: %s", n, left)
		}
	}
	err := <-done
	s.check(c.t, "while the chart is uninstalled", err)
}
