package k8s

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/pipe/control"
)

// pods are a server on node 1, and clients on both.
const pods = `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: localhost/load:test
    imagePullPolicy: Never
    args: [serve, "7000"]
    ports: [{containerPort: 7000, hostPort: 8000}, {containerPort: 7000, hostPort: 8000, protocol: UDP}]
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

// stream sends from a pod to an address while act runs.
func (c *cluster) stream(pod, to string, act func()) (s streamed, err error) {
	c.t.Helper()
	cmd := c.command("exec", "--stdin", pod, "--", "/usr/bin/load", "stream", to)
	input, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return s, err
	}
	func() {
		defer input.Close() // ends the stream, also when act fails the test
		time.Sleep(2 * time.Second)
		act()
		time.Sleep(2 * time.Second)
	}()
	if err := cmd.Wait(); err != nil {
		return s, fmt.Errorf("%w: %s", err, &out)
	}
	before, last, _ := strings.Cut(out.String(), "tcp ") // on standard error: which datagrams are lost
	s.which = before
	_, err = fmt.Sscanf("tcp "+last, "tcp %d back %d wrong %d udp %d lost %d", &s.tcp, &s.back, &s.wrong, &s.udp, &s.lost)
	return s, err
}

// queuesDropped counts the packets that found a CPU's queue of received ones full, as they
// do on a machine with too few CPUs for so many pods.
func queuesDropped(t *testing.T) (n uint64) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		dropped, err := strconv.ParseUint(strings.Fields(line)[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		n += dropped
	}
	return n
}

// unharmed fails unless everything comes back that a pod sends to an address while act
// runs.
func (c *cluster) unharmed(what, pod, to string, act func()) {
	c.t.Helper()
	begin, dropped := time.Now(), queuesDropped(c.t)
	s, err := c.stream(pod, to, act)
	c.t.Logf("%-34s %10d bytes, lost %d; %5d datagrams, lost %d; %.1f s; this machine's kernel dropped %d packets from full queues", what,
		s.tcp, s.tcp-s.back+s.wrong, s.udp, s.lost, time.Since(begin).Seconds(), queuesDropped(c.t)-dropped)
	if err != nil || s.tcp == 0 || s.back != s.tcp || s.wrong != 0 || s.lost != 0 {
		c.t.Errorf("%s: %+v, %v", what, s, err)
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

// share prints which part of the packets goes express at each node while act runs, and why
// the others do not. It returns how many do at the node where fewest do.
func (c *cluster) share(act func()) (fewest uint64) {
	c.t.Helper()
	before := [3]api.Status{1: c.status(1), 2: c.status(2)}
	act()
	for n := 1; n <= 2; n++ {
		was, now := before[n], c.status(n)
		express, regular := now.Totals.ExpressPackets-was.Totals.ExpressPackets, now.Totals.RegularPackets-was.Totals.RegularPackets
		c.t.Logf("node%d: %d packets express, %d regular: %.1f %% express; regular by reason: %v; rules were read %d times, and unknown for %.1f s", n,
			express, regular, 100*float64(express)/float64(express+regular), reasons(was, now), now.Rules.Read-was.Rules.Read, now.Rules.Unknown-was.Rules.Unknown)
		if n == 1 || express < fewest {
			fewest = express
		}
	}
	return fewest
}

// reasons counts the regular packets of containers between two statuses by reason; what is
// only of containers that have gone is missing.
func reasons(was, now api.Status) map[string]uint64 {
	sum := make(map[string]uint64)
	before := make(map[string]api.Container)
	for _, container := range was.Containers {
		before[container.Dev] = container
	}
	for _, container := range now.Containers {
		for reason, n := range container.Reasons {
			if n -= before[container.Dev].Reasons[reason]; n > 0 {
				sum[reason] += n
			}
		}
	}
	return sum
}

// ready waits until pods are ready.
func (c *cluster) ready(pods ...string) {
	c.t.Helper()
	for i, pod := range pods {
		pods[i] = "pod/" + pod
	}
	c.kubectl(append([]string{"wait", "--for=condition=Ready", "--timeout=120s"}, pods...)...)
}

// Packets go express on each way between pods, and nothing is lost.
func (c *cluster) testWays() {
	cluster := strings.TrimSpace(c.kubectl("get", "service", "server", "-o", "jsonpath={.spec.clusterIP}"))
	fewest := c.share(func() {
		for _, way := range []struct{ what, pod, to string }{
			{"pod to pod, one node", "near", c.addr + ":7000"},
			{"pod to pod, two nodes", "far", c.addr + ":7000"},
			{"ClusterIP", "far", cluster + ":80"},
			{"NodePort", "far", "10.200.0.11:30070"},
			{"port of the node, by portmap", "far", "10.200.0.11:8000"},
		} {
			c.unharmed(way.what, way.pod, way.to, func() {})
		}
	})
	if fewest < 1000 {
		c.t.Errorf("%d packets went express", fewest)
	}
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

// The daemon and its keeper run with the runtime's seccomp profile, cannot gain rights, and
// have the capabilities that the chart adds: CHOWN, NET_ADMIN, SYS_PTRACE, PERFMON and BPF.
func (c *cluster) testRights() {
	out := run(c.t, "nsenter", "--target", strconv.Itoa(c.pids[1]), "--pid", "--mount", "sh", "-c",
		`for p in $(grep --files-with-matches --extended-regexp --null-data '^(daemon|down)$' /proc/[0-9]*/cmdline); do grep --extended-regexp '^(Name|Seccomp|NoNewPrivs|CapPrm):' ${p%cmdline}status; done`)
	for _, part := range []string{"Name:\tscon\n", "Seccomp:\t2\n", "NoNewPrivs:\t1\n", "CapPrm:\t000000c000081001\n"} {
		if n := strings.Count(out, part); n != 2 {
			c.t.Errorf("%d of 2 processes have %q:\n%s", n, part, out)
		}
	}
}

// piped are two pods of node 2 without rights that mount the pipe's socket: each has a
// container for a program that links to the library, and one for a program below scon run.
const piped = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 65534, seccompProfile: {type: RuntimeDefault}}
  volumes: [{name: pipe, hostPath: {path: /run/scon/pipe, type: Directory}}]
  containers:
  - name: library
    image: localhost/load:test
    imagePullPolicy: Never
    args: [pause]
    securityContext: &none {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: &pipe [{name: pipe, mountPath: /run/scon/pipe, readOnly: true}]
  - name: run
    image: localhost/load:test
    imagePullPolicy: Never
    args: [pause]
    env: [{name: LD_PRELOAD, value: /usr/bin/libsconrun.so}]
    securityContext: *none
    volumeMounts: *pipe
`

// Two pods of a node exchange numbered messages by the pipe, through the socket that the
// chart's broker offers: each byte arrives, and the broker's rings have carried them.
func (c *cluster) testPipe() {
	c.apply(strings.ReplaceAll(piped, "NAME", "giver") + "---" + strings.ReplaceAll(piped, "NAME", "taker"))
	c.ready("giver", "taker")
	addr := strings.TrimSpace(c.kubectl("get", "pod", "taker", "-o", "jsonpath={.status.podIP}"))
	for container, transport := range map[string]string{"library": "pipe", "run": "tcp"} {
		before := c.pipe(2)
		to := fmt.Sprintf("%s:%s:9000", transport, addr)
		taker := c.command("exec", "taker", "-c", container, "--", "/usr/bin/scon-pipe-load", "listen", to)
		var out strings.Builder
		taker.Stdout, taker.Stderr = &out, &out
		if err := taker.Start(); err != nil {
			c.t.Fatal(err)
		}
		sent, err := c.try("exec", "giver", "-c", container, "--", "/usr/bin/scon-pipe-load", "connect", to, "--seconds", "2")
		if errTaker := taker.Wait(); err != nil || errTaker != nil { // either compares what it got
			c.t.Errorf("%s: %v; %v: %s", container, err, errTaker, &out)
			continue
		}
		now := c.pipe(2)
		c.t.Logf("pipe, %s: %s: %d connections, %d bytes by rings", container, strings.TrimSpace(sent), now.Made-before.Made, now.SentBytes-before.SentBytes)
		if now.Made == before.Made || now.SentBytes-before.SentBytes < 1<<20 {
			c.t.Errorf("%s: before %+v, after %+v", container, before, now)
		}
	}
	c.kubectl("delete", "pod", "giver", "taker")
}

// pipe is what the broker of a node has counted.
func (c *cluster) pipe(n int) (p control.Pipe) {
	c.t.Helper()
	out := c.kubectl("-n", "scon-system", "exec", c.daemonOn(n), "-c", "pipe", "--", "/usr/bin/scon", "pipe", "stat", "--json")
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	return p
}

// affine are two servers behind a Service with session affinity and one without.
const affine = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: pair}
spec:
  replicas: 2
  selector: {matchLabels: {app: pair}}
  template:
    metadata: {labels: {app: pair}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: pair}}}]
      containers: [{name: echo, image: "localhost/load:test", imagePullPolicy: Never, args: [serve, "7000"]}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {selector: {app: pair}, sessionAffinity: ClientIP, ports: [{port: 80, targetPort: 7001}]}
---
apiVersion: v1
kind: Service
metadata: {name: free}
spec: {selector: {app: pair}, ports: [{port: 80, targetPort: 7001}]}
`

// All connections of a client go to one server by a Service with session affinity, and to
// both by one without, also while packets of them go express at both nodes.
func (c *cluster) testAffinity() {
	c.apply(affine)
	c.kubectl("rollout", "status", "deployment/pair", "--timeout=120s")
	c.share(func() {
		before := [3]api.Status{1: c.status(1), 2: c.status(2)}
		for service, servers := range map[string]int{"sticky": 1, "free": 2} {
			addr := strings.TrimSpace(c.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}"))
			c.await(service, func() error {
				out, err := c.try("exec", "near", "--", "/usr/bin/load", "ask", addr+":80", "40")
				if n := strings.Count(out, "\n"); err == nil && n != servers {
					err = fmt.Errorf("%d servers answered, want %d: %s", n, servers, out)
				}
				for n := 1; n <= servers && err == nil; n++ { // the client is at the first node
					if c.status(n).Totals.ExpressPackets == before[n].Totals.ExpressPackets {
						err = fmt.Errorf("nothing went express at node%d", n)
					}
				}
				return err
			})
		}
	})
}

// A rule that is put in while a stream is express stops it, and its packets pass again
// when the rule is gone: nothing is lost of the stream.
func (c *cluster) testRule() {
	var out string
	s, err := c.stream("far", c.addr+":7000", func() {
		c.inNode(2, `nft -f - <<'RULES'
table ip guard {
	chain forward {
		type filter hook forward priority 0; policy accept;
		ip daddr `+c.addr+` udp dport 7000 counter name blocked drop
	}
	counter blocked { }
}
RULES`)
		time.Sleep(2 * time.Second)
		out = c.inNode(2, "nft list counter ip guard blocked; nft delete table ip guard")
	})
	s.which = "" // all while the rule was there
	c.t.Logf("rule in mid-stream: %+v", s)
	if err != nil || s.back != s.tcp || s.wrong != 0 || s.lost < 100 || strings.Contains(out, "packets 0 ") {
		c.t.Errorf("%+v, %v; the rule counted %s", s, err, out)
	}
}

// All pods of the chart are replaced, by those of another image, while a stream is express:
// nothing is lost, and its Conentries are taken over.
func (c *cluster) testRollout() {
	old := c.daemonOn(2)
	c.unharmed("during a rolling update", "far", c.addr+":7000", func() {
		begin := time.Now()
		c.inChart("upgrade", "scon", "../../packaging/helm/scon", "--reset-then-reuse-values", "--set", "image.tag=next", "--wait", "--timeout", "3m")
		c.kubectl("-n", "scon-system", "rollout", "status", "daemonset/scon", "--timeout=120s")
		c.t.Logf("rolled out in %.1f s", time.Since(begin).Seconds())
	})
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
}

// Services come and go while a stream is express.
func (c *cluster) testServices() {
	services := 200
	if *full {
		services = 1000
	}
	var all strings.Builder
	for i := range services {
		fmt.Fprintf(&all, "---\napiVersion: v1\nkind: Service\nmetadata: {name: churn-%d, labels: {churn: \"yes\"}}\nspec: {selector: {app: server}, ports: [{port: 80, targetPort: 7000}]}\n", i)
	}
	c.write("services.yaml", all.String())
	c.share(func() {
		c.unharmed(fmt.Sprintf("while %d Services come and go", services), "far", c.addr+":7000", func() {
			c.kubectl("create", "-f", filepath.Join(c.dir, "services.yaml"))
			c.kubectl("delete", "services", "-l", "churn=yes", "--wait=false")
		})
	})
}

// A kubelet starts again: the daemon's pod and streams go on. What is executed in a pod
// ends with its kubelet, so the stream begins at the other node.
func (c *cluster) testKubelet() {
	daemon := c.daemonOn(2)
	server := strings.TrimSpace(c.kubectl("get", "pods", "-l", "app=pair", "-o", `jsonpath={.items[?(@.spec.nodeName=="node2")].status.podIP}`))
	c.unharmed("while a kubelet starts again", "near", server+":7000", func() {
		c.restart(2, "kubelet")
		c.kubectl("wait", "--for=condition=Ready", "node/node2", "--timeout=120s")
		c.apply(strings.ReplaceAll(client, "NAME", "later")) // only a kubelet that works starts it
		c.ready("later")
	})
	c.kubectl("delete", "pod", "later")
	if now := c.daemonOn(2); now != daemon {
		c.t.Errorf("the daemon's pod %s became %s", daemon, now)
	}
}

// client is a pod on node 2.
const client = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "localhost/load:test", imagePullPolicy: Never, args: [pause]}]
`

// A pod is deleted in mid-stream: its own stream ends, its name goes, others lose nothing.
func (c *cluster) testDeleted() {
	c.apply(strings.ReplaceAll(client, "NAME", "doomed"))
	c.ready("doomed")
	c.unharmed("while a pod with a stream is deleted", "far", c.addr+":7000", func() {
		if s, err := c.stream("doomed", c.addr+":7000", func() { c.kubectl("delete", "pod", "doomed") }); err == nil {
			c.t.Errorf("the deleted pod's stream ended well: %+v", s)
		}
	})
	c.await("the name is gone", func() error {
		for _, container := range c.status(2).Containers {
			if strings.Contains(container.Name, "doomed") {
				return fmt.Errorf("%s is there", container.Name)
			}
		}
		return nil
	})
}

// A node is drained and comes back: the daemon stays, streams of the other one go on.
func (c *cluster) testDrain() {
	daemon := c.daemonOn(2)
	c.unharmed("while the other node is drained", "near", c.addr+":7000", func() {
		c.kubectl("drain", "node2", "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=120s")
		c.await("only the daemon has pods on the node", func() error {
			if n := len(c.status(2).Containers); n > 0 {
				return fmt.Errorf("%d containers", n)
			}
			return nil
		})
		c.kubectl("uncordon", "node2")
	})
	if now := c.daemonOn(2); now != daemon {
		c.t.Errorf("the daemon's pod %s became %s", daemon, now)
	}
	c.apply(pods)
	c.ready("server", "near", "far", "plain")
	c.unharmed("after the node came back", "far", c.addr+":7000", func() {})
}

// Hundreds of pods come and go while a stream is express.
func (c *cluster) testCrowd() {
	const crowd = 200
	c.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd}
spec:
  replicas: %d
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      containers: [{name: idle, image: "localhost/load:test", imagePullPolicy: Never, args: [pause]}]
`, crowd))
	c.share(func() {
		c.unharmed(fmt.Sprintf("while %d pods come and go", crowd), "far", c.addr+":7000", func() {
			c.kubectl("rollout", "status", "deployment/crowd", "--timeout=400s")
			c.await("all are known", func() error {
				known := 0
				for n := 1; n <= 2; n++ {
					for _, container := range c.status(n).Containers {
						if strings.HasPrefix(container.Name, "default/crowd-") {
							known++
						}
					}
				}
				if known != crowd {
					return fmt.Errorf("%d of %d", known, crowd)
				}
				return nil
			})
			c.kubectl("delete", "deployment", "crowd")
			c.kubectl("wait", "--for=delete", "pod", "-l", "app=crowd", "--timeout=300s")
		})
	})
}

// Without the chart nothing of SCON is left on a node, and connections go on. The full
// form does it often: what is lost then depends on the moment.
func (c *cluster) testUninstall() {
	c.uninstall()
	for range 4 {
		if !*full {
			break
		}
		c.install()
		c.uninstall()
	}
}

func (c *cluster) uninstall() {
	c.t.Helper()
	c.unharmed("while the chart is uninstalled", "far", c.addr+":7000", func() {
		c.runGuide(guideUninstall)
		c.await("pods of the chart are gone", func() error {
			out, err := c.try("-n", "scon-system", "get", "pods", "--no-headers", "--ignore-not-found")
			if err == nil && strings.TrimSpace(out) != "" && !strings.Contains(out, "No resources") {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	})
	for n := 1; n <= 2; n++ {
		left := c.inNode(n, "ls -A /sys/fs/bpf | grep -v '[.]debug$'; tc qdisc show | grep clsact; ls /run/containerd/plugins /run/containerd/lists | grep scon || true")
		if left = strings.TrimSpace(left); left != "" {
			c.t.Errorf("node%d has left: %s", n, left)
		}
	}
}
