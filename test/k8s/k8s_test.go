// Package k8s runs a real Kubernetes of two nodes on this machine, installs SCON's chart,
// and sends traffic between pods: `make test-k8s`, and with all clusters and specs
// `make test-k8s-full`.
package k8s

import (
	"flag"
	"fmt"
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

var (
	chosen = flag.String("cluster", "", "clusters to start, by name and separated by commas; none: all tests are skipped")
	full   = flag.Bool("full", false, "all specs, Kubernetes' own too: half an hour a cluster")
)

// clusters differ in kube-proxy's mode and the network of pods.
var clusters = []struct{ name, proxy, network string }{
	{"nftables", "nftables", "bridge"},
	{"iptables", "iptables", "bridge"},
	{"scon-cni", "nftables", "scon-cni"},
	{"flannel", "nftables", "flannel"},
	{"dual", "nftables", "dual"},
}

// version of Kubernetes, as in tools/go.mod.
const version = "v1.37.2"

// stamped has Kubernetes' programs know their version.
const stamped = "-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=" + version +
	" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"

// build has Go build something of a module of tools, or finds it among what was built.
func build(t *testing.T, module, name string, command ...string) (dir string) {
	t.Helper()
	dir, err := vm.Cached("tools", name, func(dir string) error {
		t.Logf("building %s: minutes", name)
		cmd := exec.Command("go", command...)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir, "GOFLAGS=-trimpath")
		for i := range cmd.Args {
			cmd.Args[i] = strings.ReplaceAll(cmd.Args[i], "DIR", dir)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(command, " "), err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// pack makes an archive of an image with tags from a directory's files: what is copied to
// where, in the words of a Containerfile.
func pack(t *testing.T, archive, dir, copies, program string, tags ...string) {
	t.Helper()
	file := fmt.Sprintf("FROM scratch\n%s\nENTRYPOINT [%q]\nCMD [\"pause\"]\n", copies, program)
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "podman", "build", "--quiet", "--isolation", "chroot", "--tag", tags[0], dir)
	run(t, "podman", append([]string{"tag", tags[0]}, tags...)...)
	run(t, "podman", append([]string{"save", "--quiet", "--format", "docker-archive", "--output", archive}, tags...)...)
	run(t, "podman", append([]string{"rmi", "--force"}, tags...)...)
}

// images makes archives of the images of these sources.
func images(t *testing.T) (archives []string) {
	t.Helper()
	dir := t.TempDir()
	for name, program := range map[string]string{"scon": "../../cmd/scon", "load": "load"} {
		copies := "COPY " + name + " /usr/bin/"
		switch name {
		case "scon":
			run(t, "make", "-C", "../..", "BIN="+dir, dir+"/scon-cni")
			copies = "COPY scon scon-cni /usr/bin/"
		case "load": // with a C program that uses the pipe, by both libraries
			run(t, "make", "-C", "../..", "BIN="+dir, "examples")
			run(t, "sh", "-c", `cd "$0" && mkdir root && ldd libsconrun.so | grep --only-matching '/[^ ]*' | xargs cp --parents --dereference --target-directory root`, dir)
			copies = "COPY load scon-pipe-load libsconrun.so /usr/bin/\nCOPY root /"
		}
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), ".")
		cmd.Dir, cmd.Env = program, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", program, err, out)
		}
		archive := filepath.Join(dir, name+".tar")
		pack(t, archive, dir, copies, "/usr/bin/"+name, "localhost/"+name+":test", "localhost/"+name+":next")
		archives = append(archives, archive)
	}
	return archives
}

// inChart runs Helm in the cluster's network.
func (c *cluster) inChart(args ...string) {
	c.t.Helper()
	args = append([]string{"--target", strconv.Itoa(c.pids[1]), "--net", c.helm, "--kubeconfig", c.dir + "/admin.kubeconfig", "--namespace", "scon-system"}, args...)
	run(c.t, "nsenter", args...)
}

// install installs the chart by README's command.
func (c *cluster) install() {
	c.t.Helper()
	c.helm = filepath.Join(build(c.t, "../helm/tools", "helm-v4.3.1", "build", "-ldflags=-s -w", "-o", "DIR/", "helm.sh/helm/v4/cmd/helm"), "helm")
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		c.t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^helm (install .*)$`).FindStringSubmatch(string(readme))
	if command == nil {
		c.t.Fatal("README.md has no line with helm install")
	}
	args := strings.Fields(strings.NewReplacer("REGISTRY", "localhost", "VERSION", "test", "packaging/", "../../packaging/").Replace(command[1]))
	values := "image.pullPolicy=Never,settings.admit=4,pipe.enabled=true"
	if networks[c.network] == "" {
		values += ",network.enabled=true,network.subnets.node1=10.244.1.0/24,network.subnets.node2=10.244.2.0/24,network.plugins=/run/containerd/plugins,network.lists=/run/containerd/lists"
	}
	c.inChart(append(args, "--set", values, "--wait", "--timeout", "3m")...)
}

func TestCluster(t *testing.T) {
	if *chosen == "" {
		t.Skip("make test-k8s starts clusters")
	}
	names := strings.Split(*chosen, ",")
	for _, cl := range clusters {
		i := slices.Index(names, cl.name)
		if i < 0 {
			continue
		}
		names = slices.Delete(names, i, i+1)
		t.Run(cl.name, func(t *testing.T) { (&cluster{t: t, proxy: cl.proxy, network: cl.network}).test() })
	}
	if len(names) > 0 {
		t.Errorf("there is no cluster %q", names)
	}
}

// prepare builds the programs, and starts the cluster with archives of images besides those
// of these sources.
func (c *cluster) prepare(archives ...string) {
	c.bin = build(c.t, "tools", "hyper-"+version, "build", stamped, "-o", "DIR/", "./hyper")
	c.start(append(images(c.t), archives...))
}

// test starts the cluster, and runs all specs in it.
func (c *cluster) test() {
	begin := time.Now()
	since := func(what string) { c.t.Logf("%6.1f s  %s", time.Since(begin).Seconds(), what) }
	var archives []string
	if *full {
		archives = specImages(c.t)
	}
	c.prepare(archives...)
	since("programs and images")
	state := " Ready "
	if networks[c.network] == "" {
		state = " NotReady "
	}
	c.awaitNodes(state)
	since("two nodes are" + state + "with kube-proxy for " + c.proxy)
	c.install()
	c.awaitNodes(" Ready ")
	since("the chart is installed")
	c.apply(pods)
	c.ready("server", "near", "far", "plain")
	c.addr = strings.TrimSpace(c.kubectl("get", "pod", "server", "-o", "jsonpath={.status.podIP}"))
	since("pods are ready")

	var failed []string // of Kubernetes' specs
	for _, spec := range []struct {
		name string
		full bool
		run  func(c *cluster)
	}{
		{"ways", false, (*cluster).testWays},
		{"guide", false, (*cluster).testGuide},
		{"names", false, (*cluster).testNames},
		{"rights", false, (*cluster).testRights},
		{"pipe", false, (*cluster).testPipe},
		{"affinity", false, (*cluster).testAffinity},
		{"rule", false, (*cluster).testRule},
		{"rollout", false, (*cluster).testRollout},
		{"services", false, (*cluster).testServices},
		{"kubelet", false, (*cluster).testKubelet},
		{"deleted", false, (*cluster).testDeleted},
		{"drain", true, (*cluster).testDrain},
		{"crowd", true, (*cluster).testCrowd},
		{"conformance", true, func(c *cluster) { failed = c.testConformance() }},
		{"network", false, (*cluster).testNetwork},
		{"uninstall", false, (*cluster).testUninstall},
		{"conformance without SCON", true, func(c *cluster) { c.testSpecsFailAnyway(failed) }},
	} {
		if spec.full && !*full {
			continue
		}
		c.t.Run(spec.name, func(t *testing.T) { spec.run(c.in(t)) })
		since(spec.name)
	}
}

// in is the cluster for a part of the test.
func (c *cluster) in(t *testing.T) *cluster {
	part := *c
	part.t = t
	return &part
}
