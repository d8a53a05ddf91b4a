package k8s

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

//	fabric (a namespace): br0 10.200.0.1/24
//	     |                          |
//	   eth0 10.200.0.11           eth0 10.200.0.12
//	   node1 (+ control plane)    node2
//	   cni0 10.244.1.1/24         cni0 10.244.2.1/24
//	     |                          |
//	   pods                       pods

// cluster is a Kubernetes of two nodes, each in namespaces of its own.
type cluster struct {
	t       *testing.T
	proxy   string // kube-proxy's mode
	network string // as networks
	dir     string
	bin     string // directory of hyper
	helm    string // the program
	addr    string // of the pod server
	group   string // prefix of the nodes' cgroups
	pids    [3]int // of the nodes' first processes, by number
}

// networks are the plugins of a node's list for CNI; node.sh makes the way between nodes.
// Without a list the chart makes the network.
var networks = map[string]string{
	"bridge": `{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "OWN/ipam", "ranges": [[{"subnet": "10.244.N.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}`,
	// Pods and Services have addresses of both families, and pods' are seen by others.
	"dual": `{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "OWN/ipam", "ranges": [[{"subnet": "10.244.N.0/24"}], [{"subnet": "fd00:244:N::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}`,
	// What the plugin flannel delegates to: it masquerades by rules of its own.
	"flannel": `{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "mtu": 1450,
  "ipam": {"type": "host-local", "dataDir": "OWN/ipam", "ranges": [[{"subnet": "10.244.N.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}, {"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}`,
}

// patience is how long a step of the cluster may take.
const patience = 3 * time.Minute

// start starts a cluster with images from archives.
func (c *cluster) start(images []string) {
	t := c.t
	t.Helper()
	c.group = fmt.Sprintf("scon-k8s-%d-", os.Getpid())
	dir, err := os.MkdirTemp("", "scon-k8s-") // containerd's sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	sysctlsStay(t)
	if err := os.Mkdir(filepath.Join(dir, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, image := range images {
		if err := os.Link(image, filepath.Join(dir, "images", filepath.Base(image))); err != nil {
			t.Fatal(err)
		}
	}
	c.makeKeys()
	c.write("oci.json", c.baseSpec())
	for n := 1; n <= 2; n++ {
		c.configure(n)
	}
	fabric := fmt.Sprintf("scon-k8s-%d", os.Getpid())
	run(t, "ip", "netns", "add", fabric)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", fabric).Run() })
	for _, line := range []string{"link add br0 type bridge", "addr add 10.200.0.1/24 dev br0", "addr add fd00:200::1/64 dev br0 nodad", "link set br0 up", "link set lo up"} {
		run(t, "ip", append([]string{"-n", fabric}, strings.Fields(line)...)...)
	}
	for n := 1; n <= 2; n++ {
		c.launch(n, fabric)
	}
}

// baseSpec is what each container begins with. Also on a machine with cgroup 1 it has what a
// node with cgroup 2 gives: a cgroup namespace, and a view of its own cgroup.
func (c *cluster) baseSpec() string {
	out := run(c.t, "ctr", "oci", "spec")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return out
	}
	var spec map[string]any
	if err := json.Unmarshal([]byte(out), &spec); err != nil {
		c.t.Fatal(err)
	}
	linux := spec["linux"].(map[string]any)
	linux["namespaces"] = append(linux["namespaces"].([]any), map[string]any{"type": "cgroup"})
	spec["mounts"] = append(spec["mounts"].([]any), map[string]any{
		"destination": "/cgroup2", "type": "cgroup2", "source": "cgroup2", "options": []string{"ro", "nosuid", "noexec", "nodev"},
	})
	changed, err := json.Marshal(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(changed)
}

// awaitNodes waits until both nodes have a state: they are Ready with a network for pods.
func (c *cluster) awaitNodes(state string) {
	c.t.Helper()
	c.await("two nodes", func() error {
		out, err := c.try("get", "nodes", "--no-headers")
		if n := strings.Count(out, state); err != nil || n != 2 {
			return fmt.Errorf("%d nodes are %s: %v", n, state, err)
		}
		return nil
	})
}

// sysctlsStay fails the test if a kubelet has changed the machine's settings when it ends.
func sysctlsStay(t *testing.T) {
	for _, name := range []string{"vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"} {
		read := func() string {
			value, err := os.ReadFile("/proc/sys/" + name)
			if err != nil {
				t.Error(err)
			}
			return string(value)
		}
		before := read()
		t.Cleanup(func() {
			if now := read(); now != before {
				t.Errorf("the machine's %s was %s, and is %s", name, strings.TrimSpace(before), now)
			}
		})
	}
}

// launch starts a node, and connects it to the fabric.
func (c *cluster) launch(n int, fabric string) {
	log, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("node%d.log", n)))
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "./node.sh")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "NODE="+strconv.Itoa(n), "DIR="+c.dir, "BIN="+c.bin, "NETWORK="+c.network, "GROUP="+c.group+strconv.Itoa(n))
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("node%d:\n%s", n, tail(log.Name()))
		}
		_ = cmd.Process.Kill() // with it all of the node's
		_ = cmd.Wait()
		c.await("cgroups without processes", func() error { return c.removeGroups(n) })
	})
	c.await("node's first process", func() error {
		out, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err != nil {
			return err
		}
		c.pids[n], err = strconv.Atoi(strings.TrimSpace(string(out)))
		return err
	})
	port := fmt.Sprintf("n%d", n)
	run(c.t, "ip", "-n", fabric, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(c.pids[n]))
	run(c.t, "ip", "-n", fabric, "link", "set", port, "master", "br0", "up")
}

// removeGroups removes the cgroups of a node.
func (c *cluster) removeGroups(n int) error {
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + c.group + strconv.Itoa(n))
	for _, group := range groups {
		_ = exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
		if _, err := os.Stat(group); err == nil {
			return fmt.Errorf("%s is in use", group)
		}
	}
	return err
}

// await repeats a step until it succeeds.
func (c *cluster) await(what string, step func() error) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		if err = step(); err == nil {
			return
		}
	}
	c.t.Fatalf("%s: %v", what, err)
}

// command is kubectl with arguments.
func (c *cluster) command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(c.pids[1]), "--net", c.bin + "/hyper", "kubectl", "--kubeconfig", c.dir + "/admin.kubeconfig"}, args...)...)
}

// try runs kubectl.
func (c *cluster) try(args ...string) (string, error) {
	out, err := c.command(args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// apply creates objects from YAML.
func (c *cluster) apply(objects string) {
	c.t.Helper()
	c.write("objects.yaml", objects)
	c.kubectl("apply", "-f", filepath.Join(c.dir, "objects.yaml"))
}

// inNode runs a command in a node's namespaces.
func (c *cluster) inNode(n int, command string) string {
	c.t.Helper()
	return run(c.t, "nsenter", "--target", strconv.Itoa(c.pids[n]), "--net", "--mount", "sh", "-c", command)
}

// restart kills a program of a node that node.sh keeps, and waits for the next one.
func (c *cluster) restart(n int, name string) {
	c.t.Helper()
	file := fmt.Sprintf("%s/node%d/%s.pid", c.dir, n, name)
	read := func() string {
		b, _ := os.ReadFile(file)
		return strings.TrimSpace(string(b))
	}
	old := read()
	run(c.t, "nsenter", "--target", strconv.Itoa(c.pids[n]), "--pid", "--mount", "kill", old)
	c.await("another "+name, func() error {
		if pid := read(); pid == old || pid == "" {
			return fmt.Errorf("process %q", pid)
		}
		return nil
	})
}

func (c *cluster) write(name, content string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// makeKeys makes the certificates, the tokens and who has them.
func (c *cluster) makeKeys() {
	key := func(name string) *rsa.PrivateKey {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			c.t.Fatal(err)
		}
		c.write(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})))
		return k
	}
	key("sa")
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey := key("ca")
	sign := func(name string, cert *x509.Certificate, k *rsa.PrivateKey) {
		der, err := x509.CreateCertificate(rand.Reader, cert, ca, &k.PublicKey, caKey)
		if err != nil {
			c.t.Fatal(err)
		}
		c.write(name+".crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	}
	sign("ca", ca, caKey)
	sign("api", &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
		IPAddresses: []net.IP{net.IPv4(10, 96, 0, 1), net.IPv4(10, 200, 0, 11), net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key("api"))
	sign("kubelet", &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "apiserver-kubelet", Organization: []string{"system:masters"}},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key("kubelet"))
	var tokens strings.Builder
	for name, user := range map[string]string{
		"admin": "admin,admin,system:masters", "manager": "system:kube-controller-manager,manager", "scheduler": "system:kube-scheduler,scheduler",
		"proxy": "system:kube-proxy,proxy", "node1": "system:node:node1,node1,system:nodes", "node2": "system:node:node2,node2,system:nodes",
	} {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s\n", token, user)
		c.write(name+".kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.200.0.11:6443", certificate-authority: %s/ca.crt}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, c.dir, token))
	}
	c.write("tokens.csv", tokens.String())
}

// configure writes a node's files.
func (c *cluster) configure(n int) {
	own := fmt.Sprintf("%s/node%d", c.dir, n)
	files := map[string]string{
		"containerd.toml": `version = 2
root = "OWN/containerd"
state = "/run/containerd"
[grpc]
  address = "OWN/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/load:test"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/run/containerd/plugins"
    conf_dir = "/run/containerd/lists"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    pod_annotations = ["scon.dev/*"]
    base_runtime_spec = "DIR/oci.json"
`,
		"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.200.0.1N
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: DIR/ca.crt}}
authorization: {mode: Webhook}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://OWN/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /GROUPN
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: 100Mi}
maxPods: 220
serializeImagePulls: false
podLogsDir: OWN/pods
resolvConf: /etc/resolv.conf
`,
		"proxy.yaml": `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: MODE
clientConnection: {kubeconfig: DIR/proxy.kubeconfig}
clusterCIDR: PODS
hostnameOverride: nodeN
conntrack: {maxPerCore: 0, min: null, tcpEstablishedTimeout: null, tcpCloseWaitTimeout: null}
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 0.0.0.0:10249
`,
	}
	if plugins := networks[c.network]; plugins != "" {
		files["10-pods.conflist"] = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [` + plugins + "]}\n"
	}
	pods := "10.244.0.0/16"
	if c.network == "dual" {
		pods += ",fd00:244::/32"
	}
	for name, text := range files {
		text = strings.NewReplacer("OWN", own, "DIR", c.dir, "MODE", c.proxy, "PODS", pods, "GROUPN", c.group+strconv.Itoa(n),
			"10.200.0.1N", "10.200.0.1"+strconv.Itoa(n), "10.244.N.", "10.244."+strconv.Itoa(n)+".", "fd00:244:N:", "fd00:244:"+strconv.Itoa(n)+":", "nodeN", "node"+strconv.Itoa(n)).Replace(text)
		c.write(fmt.Sprintf("node%d/%s", n, name), text)
	}
}

// tail returns the end of a log.
func tail(path string) string {
	b, _ := os.ReadFile(path)
	return string(b[max(0, len(b)-3000):])
}

// run runs a command, and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
