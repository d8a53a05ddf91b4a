package peers

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// plugins are CNI's own plugins with their tests, which make network namespaces for hosts
// and containers alike.
var plugins = module{"github.com/containernetworking/plugins", "v1.10.0", "h1:4lwzpgsn5NdIneXrag/EEfKzhNSriJc1zTxZxfdfPLQ="}

// cniPackages are the packages of the plugins with tests of networks, by suite. kind is the
// device's that the tests need: where this machine's kernel has none, they run in a guest.
var cniPackages = []struct{ suite, path, kind string }{
	{"cni-bridge", "plugins/main/bridge", "bridge vlan_filtering 1"}, {"cni-ptp", "plugins/main/ptp", "veth"}, {"cni-vlan", "plugins/main/vlan", "dummy"},
	{"cni-macvlan", "plugins/main/macvlan", "dummy"}, {"cni-ipvlan", "plugins/main/ipvlan", "dummy"}, {"cni-host-device", "plugins/main/host-device", "dummy"},
	{"cni-tap", "plugins/main/tap", "bridge"}, {"cni-dummy", "plugins/main/dummy", "dummy"},
	{"cni-portmap", "plugins/meta/portmap", "veth"}, {"cni-firewall", "plugins/meta/firewall", "dummy"}, {"cni-bandwidth", "plugins/meta/bandwidth", "ifb"},
	{"cni-tuning", "plugins/meta/tuning", "dummy"}, {"cni-vrf", "plugins/meta/vrf", "vrf"}, {"cni-sbr", "plugins/meta/sbr", "dummy"},
	{"cni-host-local", "plugins/ipam/host-local", "veth"}, {"cni-dhcp", "plugins/ipam/dhcp", "bridge"}, {"cni-pkg-ip", "pkg/ip", "veth"}, {"cni-pkg-ipam", "pkg/ipam", "dummy"},
}

// cniSuites run each package as it is, and those that use plugins as programs also with
// scon-cni in the place of bridge and ptp.
var cniSuites = func() (all []suite) {
	for _, p := range cniPackages {
		all = append(all, suite{
			name: p.suite, kind: p.kind,
			prepare: func(t *testing.T) (string, error) {
				version := plugins.version
				if !hasDevices(p.kind) {
					if err := findGuest(); err != nil {
						return "", err
					}
					version += ", Linux " + guestKernel
				}
				_, err := fetchPlugins()
				return version, err
			},
			run: func(t *testing.T, h *host) results { return runGinkgo(t, h, p.path) },
			guest: func(t *testing.T, logs string, with bool) (results, counts) {
				return runGinkgoInGuest(t, p.path, logs, with, false)
			},
		})
	}
	for _, name := range []string{"cni-portmap", "cni-firewall"} {
		i := slices.IndexFunc(all, func(s suite) bool { return s.name == name })
		stock := all[i]
		all = append(all, suite{name: name + "-scon-cni", prepare: stock.prepare, kind: stock.kind, run: func(t *testing.T, h *host) results {
			if h.with() {
				h.plugins = inside + "/plugins:"
				h.must(h.command("", "sh", "-euc", `mkdir "$PEERS/plugins"; for name in bridge ptp; do ln -s "${PEERS_HOOK%/*}/scon-cni.sh" "$PEERS/plugins/$name"; done`))
			}
			r := stock.run(t, h)
			if h.with() {
				h.must(h.command("", "sh", "-euc", `test -e "$PEERS/plugins/called"`))
			}
			return r
		}, guest: func(t *testing.T, logs string, with bool) (results, counts) {
			return runGinkgoInGuest(t, cniPackages[i].path, logs, with, with)
		}})
	}
	return all
}()

// hostNames are the variables that the tests have their hosts' namespaces in: SCON is
// started in these. It takes a second, so that containers' are left out.
var hostNames = regexp.MustCompile(`\b(originalNS|originalNetNS|testRootNS|hostNs|hostNetNS)(, err :?= )testutils\.NewNS\(\)`)

// namespaces has the tests' namespaces call $PEERS_HOOK.
const namespaces = `package testutils

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/containernetworking/plugins/pkg/ns"
)

func NewHost() (ns.NetNS, error) {
	n, err := NewNS()
	if err != nil {
		return nil, err
	}
	return n, hook("up", n)
}

func UnmountNS(n ns.NetNS) error {
	if err := hook("down", n); err != nil {
		return err
	}
	return unmountNS(n)
}

func hook(verb string, n ns.NetNS) error {
	program := os.Getenv("PEERS_HOOK")
	if program == "" {
		return nil
	}
	if out, err := exec.Command(program, verb, n.Path()).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", verb, n.Path(), err, out)
	}
	return nil
}
`

// fetchPlugins returns a directory with the plugins' sources, the plugins in bin, and the
// packages' test programs in tests.
var fetchPlugins = sync.OnceValues(func() (string, error) {
	return plugins.fetch(namespaces+hostNames.String()+fmt.Sprint(cniPackages), func(dir string) error {
		file := filepath.Join(dir, "pkg/testutils/netns_linux.go")
		if err := replace(file, "\nfunc UnmountNS(", "\nfunc unmountNS("); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "peers.go"), []byte(namespaces), 0o644); err != nil {
			return err
		}
		compile := []string{"test", "-c", "-o", "tests/"}
		for _, p := range cniPackages {
			compile = append(compile, "./"+p.path)
			tests, err := filepath.Glob(filepath.Join(dir, p.path, "*_test.go"))
			if err != nil {
				return err
			}
			for _, file := range tests {
				text, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				if err := os.WriteFile(file, hostNames.ReplaceAll(text, []byte("${1}${2}testutils.NewHost()")), 0o644); err != nil {
					return err
				}
			}
		}
		for _, args := range [][]string{compile, {"build", "-o", "bin/", "./plugins/main/...", "./plugins/meta/...", "./plugins/ipam/..."}} {
			cmd := goTool(dir, args...)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // a guest has another C library
			if err := run(cmd); err != nil {
				return err
			}
		}
		return nil
	})
})

// runGinkgo runs the test program of a package of the plugins.
func runGinkgo(t *testing.T, h *host, pkg string) results {
	t.Helper()
	dir, err := fetchPlugins()
	if err != nil {
		t.Fatal(err)
	}
	env, err := goEnv()
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(h.logs, "report.json")
	cmd := h.command(filepath.Join(dir, pkg), filepath.Join(dir, "tests", filepath.Base(pkg)+".test"), "-test.timeout=4h", "-ginkgo.v", "-ginkgo.timeout=4h", "-ginkgo.no-color", "-ginkgo.json-report="+report)
	cmd.Env = append(cmd.Env, env...)
	for i, v := range cmd.Env {
		if strings.HasPrefix(v, "PATH=") {
			cmd.Env[i] = "PATH=" + h.plugins + dir + "/bin" + ":" + strings.TrimPrefix(v, "PATH=")
		}
	}
	log := h.log("output", cmd)
	text, err := os.ReadFile(report)
	if err != nil {
		t.Errorf("no report: %v; see %s", err, log)
		return nil
	}
	r, err := parseGinkgo(text)
	if err != nil {
		t.Error(err)
	}
	return r
}

// guestGo stands for "go build -o FILE PACKAGE" in a guest, by which suites make their plugin.
const guestGo = `printf '#!/bin/sh\ncp "/cni/bin/${4##*/}" "$3"\n' >/usr/bin/go; chmod +x /usr/bin/go
`

// runGinkgoInGuest runs it in a guest that filters what bridges forward, with scon-cni in the place of bridge and ptp or not.
func runGinkgoInGuest(t *testing.T, pkg, logs string, with, sconCNI bool) (results, counts) {
	t.Helper()
	dir, err := fetchPlugins()
	if err != nil {
		t.Fatal(err)
	}
	name := "tests/" + filepath.Base(pkg) + ".test"
	out, sum := inGuest(t, logs, with, func(add func(to, from string)) {
		for _, path := range []string{"bin", name, pkg} {
			add("/cni/"+path, filepath.Join(dir, path))
		}
		if sconCNI {
			add("/peers/scon-cni", "../../bin/scon-cni")
			add("/peers/plugins/bridge", "scon-cni.sh")
			add("/peers/plugins/ptp", "scon-cni.sh")
		}
	}, guestGo+"modprobe br_netfilter; cd /cni/"+pkg+"; PATH=/peers/plugins:/cni/bin:$PATH /cni/"+name+" -test.timeout=4h -ginkgo.timeout=4h -ginkgo.no-color -ginkgo.json-report=/report.json\n"+
		"[ ! -e /peers/plugins/called ] || echo '=== called'\n"+
		`echo '=== report'; jq -cM '[.[] | {SpecReports: [.SpecReports[]? | {ContainerHierarchyTexts, LeafNodeType, LeafNodeText, State, Failure: {Message: .Failure.Message}}]}]' /report.json`+"\n")
	if sconCNI && !strings.Contains(out, "=== called") {
		t.Errorf("scon-cni was not called: see %s", logs)
	}
	_, report, _ := strings.Cut(out, "=== report")
	r, err := parseGinkgo([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	return r, sum
}

// parseGinkgo reads a report of Ginkgo in JSON. Cases of the same name are numbered.
func parseGinkgo(text []byte) (results, error) {
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &reports); err != nil {
		return nil, fmt.Errorf("Ginkgo's report: %w", err)
	}
	r := make(results)
	for _, report := range reports {
		for _, s := range report.SpecReports {
			name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
			switch {
			case s.LeafNodeType != "It":
				if s.State != "passed" {
					r.add(s.LeafNodeType+" "+name, failed)
				}
			case s.State == "passed":
				r.add(name, passed)
			case s.State == "skipped":
				r.add(name, skippedFor(s.Failure.Message))
			case s.State == "pending":
				r.add(name, skippedFor("pending"))
			default: // failed, panicked, timedout, interrupted, aborted
				r.add(name, failed)
			}
		}
	}
	return r, nil
}

// add adds a case, with a number if its name is taken.
func (r results) add(name string, o outcome) {
	unique := name
	for n := 2; r[unique] != (outcome{}); n++ {
		unique = fmt.Sprintf("%s (%d)", name, n)
	}
	r[unique] = o
}
