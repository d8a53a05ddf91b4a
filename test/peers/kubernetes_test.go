package peers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Kubernetes' own specs of the network beyond its conformance, which the cluster's own tests
// run (test/k8s).
const kubernetesFocus = `\[sig-network\]`

// kubernetesApart are the specs that are left out, by a part of their names.
var kubernetesApart = []struct{ part, why string }{
	{"[Conformance]", ""},
	{"[Disruptive]", "disruptive: they kill kube-proxy and the API's server by SSH"},
	{"[Feature:KubeProxyNFAcct]", "kube-proxy counts so in its mode iptables only, with a module of the kernel"},
	{"[Feature:LoadBalancer]", "the cluster has no provider of load balancers"},
	{"[Feature:LocalhostNodePorts]", "kube-proxy serves them in its mode iptables only"},
	{"[Feature:NetworkPolicy]", "no plugin that enforces policies can be fetched"},
	{"[Feature:Networking-DNS]", "the cluster has no way to the Internet"},
	{"[Feature:Networking-IPv4]", "the cluster has no way to the Internet"},
	{"[Feature:Networking-IPv6]", "the cluster has no way to the Internet"},
	{"[Feature:Networking-Performance]", "its nodes share this machine's processors"},
	{"[Feature:PerformanceDNS]", "ten thousand Services are too many for this machine"},
	{"[Feature:SCTPConnectivity]", "the kernel has no SCTP"},
	{"should forward PTR records lookup", "it asks a name server of the Internet"},
	{"should be rejected for evicted pods", "kubelet cannot tell how much local storage pods use: the node's root is the machine's"},
}

var kubernetesSuites = []suite{{name: "kubernetes", prepare: findKubernetes, guest: runKubernetes}}

func findKubernetes(t *testing.T) (string, error) {
	for _, program := range []string{"etcd", "containerd", "podman", "mmdebstrap"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", &missing{program + " is not installed: scripts/install-deps.sh k8s peers"}
		}
	}
	out, err := goTool("../k8s/tools", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	return strings.TrimSpace(string(out)), err
}

// runKubernetes has test/k8s start a cluster and run the specs.
func runKubernetes(t *testing.T, logs string, with bool) (results, counts) {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, a := range kubernetesApart {
		parts = append(parts, regexp.QuoteMeta(a.part))
	}
	log, err := os.Create(filepath.Join(logs, "output.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := goTool("../k8s", "test", "-vet=off", "-count=1", "-timeout=4h", "-v", "-run=^TestPeers$", ".",
		"-report="+logs, "-focus="+kubernetesFocus, "-apart="+strings.Join(parts, "|"), fmt.Sprintf("-chart=%v", with))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		t.Errorf("%v: see %s", err, log.Name())
	}
	text, err := os.ReadFile(filepath.Join(logs, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseGinkgo(text)
	if err != nil {
		t.Fatal(err)
	}
	var sum counts
	if with {
		statuses, err := os.ReadFile(filepath.Join(logs, "counts.json"))
		if err != nil {
			t.Fatal(err)
		}
		sum = sumStatuses(t, string(statuses))
	}
	return kubernetesCases(r), sum
}

// kubernetesCases leaves all cases out that are not of the suite, and says why others are
// skipped.
func kubernetesCases(all results) results {
	r := make(results)
	for name, o := range all {
		if o == skipped { // not chosen, or left out
			if !regexp.MustCompile(kubernetesFocus).MatchString(name) {
				continue
			}
			for _, a := range kubernetesApart {
				if strings.Contains(name, a.part) {
					o = skippedFor(a.why)
					break
				}
			}
			if o.why == "" { // conformance
				continue
			}
		}
		r[name] = o
	}
	return r
}
