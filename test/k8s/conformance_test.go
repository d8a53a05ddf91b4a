package k8s

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/vm"
)

// coreDNS is the version that answers names in the cluster.
const coreDNS = "v1.15.0"

// sources returns the directory of Kubernetes' module.
func sources(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = "tools"
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("find Kubernetes' module: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// What the image of most specs has: Debian's packages, and files.
const (
	specPackages = "bind9-dnsutils,ca-certificates,conntrack,curl,iproute2,iputils-ping,netcat-openbsd,socat,wget"
	specFiles    = "ADD root.tar /\nCOPY agnhost coredns localhost.crt localhost.key /"
)

// specImages makes archives of what Kubernetes' own specs need: agnhost on a small Debian,
// which is also the image with glibc, the one of shells, the one with iptables and the one
// that pauses; a server that sends bad packets; and CoreDNS.
func specImages(t *testing.T) []string {
	t.Helper()
	agnhost := build(t, "tools", "agnhost-"+version, "build", "-ldflags=-s -w", "-o", "DIR/", "k8s.io/kubernetes/test/images/agnhost")
	bad := build(t, "tools", "regression-issue-74839-"+version, "build", "-ldflags=-s -w", "-o", "DIR/", "k8s.io/kubernetes/test/images/regression-issue-74839")
	dns := build(t, "tools", "coredns-"+coreDNS, "install", "-ldflags=-s -w", "github.com/coredns/coredns@"+coreDNS)
	module := sources(t)
	list, err := os.ReadFile(filepath.Join(module, "test/utils/image/manifest.go"))
	if err != nil {
		t.Fatal(err)
	}
	tags := make(map[string][]string) // by whether the image is the bad server's
	registries := map[string]string{"PromoterE2eRegistry": "registry.k8s.io/e2e-test-images/", "GcRegistry": "registry.k8s.io/", "BuildImageRegistry": "registry.k8s.io/build-image/"}
	for _, m := range regexp.MustCompile(`configs\[(?:Agnhost|BusyBox|DistrolessIptables|GlibcDnsTesting|Pause|(RegressionIssue74839))\] = Config\{list.(\w+), "(.*)", "(.*)"`).FindAllStringSubmatch(string(list), -1) {
		tags[m[1]] = append(tags[m[1]], registries[m[2]]+m[3]+":"+m[4])
	}
	dir, err := vm.Cached("tools", fmt.Sprintf("images-%s-%08x", version, crc32.ChecksumIEEE([]byte(specPackages+specFiles+fmt.Sprint(tags)))), func(dir string) error {
		work := t.TempDir()
		porter := filepath.Join(module, "test/images/agnhost/porter")
		run(t, "cp", agnhost+"/agnhost", dns+"/coredns", porter+"/localhost.crt", porter+"/localhost.key", bad+"/regression-issue-74839", work)
		run(t, "mmdebstrap", "--variant=minbase", "--include="+specPackages,
			"--customize-hook=mkdir --mode=1777 $1/uploads", "bookworm", work+"/root.tar")
		pack(t, dir+"/agnhost.tar", work, specFiles, "/agnhost", tags[""]...)
		pack(t, dir+"/bad.tar", work, "COPY regression-issue-74839 /", "/regression-issue-74839", tags["RegressionIssue74839"]...)
		pack(t, dir+"/coredns.tar", work, "COPY coredns /coredns", "/coredns", "localhost/coredns:test")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return []string{dir + "/agnhost.tar", dir + "/bad.tar", dir + "/coredns.tar"}
}

// runDNS starts CoreDNS by the manifest of Kubernetes' module.
func (c *cluster) runDNS() {
	c.t.Helper()
	manifest, err := os.ReadFile(filepath.Join(sources(c.t), "cluster/addons/dns/coredns/coredns.yaml.base"))
	if err != nil {
		c.t.Fatal(err)
	}
	text := strings.NewReplacer("__DNS__DOMAIN__", "cluster.local", "__DNS__SERVER__", "10.96.0.10", "__DNS__MEMORY__LIMIT__", "170Mi").Replace(string(manifest))
	c.apply(regexp.MustCompile(`image: .*`).ReplaceAllString(text, "image: localhost/coredns:test"))
	c.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
}

// runGinkgo runs Kubernetes' own specs whose names match focus and not skip ("" for none),
// and returns the path of Ginkgo's report in a directory.
func (c *cluster) runGinkgo(focus, skip string, limit time.Duration, dir string) string {
	c.t.Helper()
	specs := build(c.t, "tools", "e2e.test-"+version, "test", "-c", stamped, "-o", "DIR/e2e.test", "k8s.io/kubernetes/test/e2e")
	ginkgo := build(c.t, "tools", "ginkgo-"+version, "build", "-ldflags=-s -w", "-o", "DIR/", "github.com/onsi/ginkgo/v2/ginkgo")
	c.write("kubectl", fmt.Sprintf("#!/bin/sh\nexec %s/hyper kubectl \"$@\"\n", c.bin))
	if err := os.Chmod(c.dir+"/kubectl", 0o700); err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(c.pids[1]), "--net", ginkgo+"/ginkgo", "--procs=4", "--no-color", "--timeout="+limit.String(),
		"--focus="+focus, "--skip="+skip, "--json-report=report.json", "--output-dir="+dir, specs+"/e2e.test", "--",
		"--provider=skeleton", "--kubeconfig="+c.dir+"/admin.kubeconfig", "--kubectl-path="+c.dir+"/kubectl", "--num-nodes=2", "--dump-logs-on-failure=false")
	out, err := cmd.CombinedOutput() // fails where a spec does
	report := filepath.Join(dir, "report.json")
	if _, errReport := os.Stat(report); errReport != nil {
		c.t.Fatalf("%v, %v: %s", errReport, err, out)
	}
	return report
}

// runSpecs runs Kubernetes' own specs whose names match, and returns those that fail.
func (c *cluster) runSpecs(names string) (ran int, failed []string) {
	c.t.Helper()
	content, err := os.ReadFile(c.runGinkgo(names, "", 20*time.Minute, c.dir))
	if err != nil {
		c.t.Fatal(err)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts    []string
			LeafNodeType, LeafNodeText string
			State                      string
			Failure                    struct{ Message string }
		}
	}
	if err := json.Unmarshal(content, &suites); err != nil {
		c.t.Fatal(err)
	}
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			if r.LeafNodeType != "It" || r.State == "skipped" || r.State == "pending" {
				continue
			}
			ran++
			if r.State != "passed" {
				name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
				failed = append(failed, name)
				c.t.Logf("%s: %s: %s", r.State, name, r.Failure.Message)
			}
		}
	}
	return ran, failed
}

// testConformance runs the specs of Kubernetes' conformance that are about the network,
// and returns those that fail.
func (c *cluster) testConformance() (failed []string) {
	c.runDNS()
	var ran int
	c.share(func() { ran, failed = c.runSpecs(`\[sig-network\].*\[Conformance\]`) })
	c.t.Logf("%d of %d specs passed", ran-len(failed), ran)
	if ran < 40 {
		c.t.Errorf("%d specs ran", ran)
	}
	return failed
}

// testSpecsFailAnyway fails unless specs fail without SCON, too. Without the chart's network
// none can run.
func (c *cluster) testSpecsFailAnyway(specs []string) {
	if len(specs) == 0 {
		return
	}
	if networks[c.network] == "" {
		c.t.Fatalf("failed: %q", specs)
	}
	names := make([]string, len(specs))
	for i, spec := range specs {
		names[i] = regexp.QuoteMeta(spec)
	}
	_, failed := c.runSpecs(strings.Join(names, "|"))
	for _, spec := range specs {
		if !slices.Contains(failed, spec) {
			c.t.Errorf("fails with SCON only: %s", spec)
		}
	}
}
