// Package helm tests SCON's chart with Helm, and what it renders with the schemas of
// Kubernetes' API.
package helm

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/scon-project/scon/test/bed/vm"
)

const chart = "../../packaging/helm/scon"

var full = flag.Bool("full", false, "build Helm and kubeconform, which takes minutes once, and test the chart")

// The tools, as built by their module's versions.
var helm, kubeconform string

var tools = sync.OnceValue(func() (err error) {
	if helm, err = build("helm.sh/helm/v4/cmd/helm"); err != nil {
		return err
	}
	kubeconform, err = build("github.com/yannh/kubeconform/cmd/kubeconform")
	return err
})

// needTools skips the short form, and builds what the long one needs.
func needTools(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("the full form: make test-packages")
	}
	if err := tools(); err != nil {
		t.Fatal(err)
	}
}

// build builds a program of the module tools, or finds it among those that were built.
func build(program string) (path string, err error) {
	list := exec.Command("go", "list", "-f", "{{.Module.Version}}", program)
	list.Dir = "tools"
	version, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the version of %s: %w", program, err)
	}
	dir, err := vm.Cached("tools", filepath.Base(program)+"-"+strings.TrimSpace(string(version)), func(dir string) error {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", program)
		cmd.Dir, cmd.Env = "tools", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", program, err, out)
		}
		return nil
	})
	return filepath.Join(dir, filepath.Base(program)), err
}

// render runs `helm template` with values.
func render(values ...string) (string, error) {
	args := []string{"template", "scon", chart, "--namespace", "scon-system", "--kube-version", "1.37.2"}
	for _, v := range values {
		args = append(args, "--set-json", v)
	}
	out, err := exec.Command(helm, args...).CombinedOutput()
	return string(out), err
}

// all are values that turn every option on.
var all = []string{
	`metrics={"port":9477,"podMonitor":{"enabled":true},"dashboard":{"enabled":true},"rules":{"enabled":true}}`,
	`pipe={"enabled":true,"settings":{"allow":["10.244.0.0/16"]}}`,
	`imagePullSecrets=[{"name":"registry"}]`,
	`nodeSelector={"example.com/express":"true"}`,
	`settings={"connections":65536,"regular":["eth1"],"log":{"level":"debug"}}`,
}

// The chart's own copies, since Helm reads no file outside of it, are those of packages.
func TestFiles(t *testing.T) {
	for copied, original := range map[string]string{"rules.yaml": "prometheus/rules.yaml", "scon.json": "grafana/scon.json"} {
		if out, err := exec.Command("cmp", filepath.Join(chart, "files", copied), filepath.Join("../../packaging", original)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v", out, err)
		}
	}
}

// network are values that make scon-cni the cluster's network.
var network = append([]string{`network={"enabled":true,"subnets":{"node1":"10.244.1.0/24","node2":"10.244.2.0/24"}}`}, all...)

func TestLint(t *testing.T) {
	needTools(t)
	if out, err := exec.Command(helm, "lint", "--strict", chart).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Wrong values are refused, with their place.
func TestRefused(t *testing.T) {
	needTools(t)
	for value, part := range map[string]string{
		`settings={"admitt":8}`:                        "admitt",
		`settings={"connections":63}`:                  "/settings/connections",
		`settings={"lease":"1"}`:                       "/settings/lease",
		`settings={"health":"0.0.0.0:1"}`:              "health",
		`settings={"log":{"level":"loud"}}`:            "/settings/log/level",
		`healthPort=0`:                                 "/healthPort",
		`tasks="run/containerd"`:                       "/tasks",
		`network={"enabled":true}`:                     "network needs network.subnets",
		`network={"subnets":{"node1":"all"}}`:          "/network/subnets/node1",
		`seccompProfile={"type":"None"}`:               "/seccompProfile/type",
		`privileged=true`:                              "privileged",
		`pipe={"settings":{"engines":["carrier"]}}`:    "/pipe/settings/engines",
		`metrics={"podMonitor":{"enabled":true}}`:      "metrics.podMonitor needs metrics.port",
		`metrics={"port":9480}`:                        "metrics.port is healthPort",
		`image={"repository":"","pullPolicy":"Never"}`: "/image/repository",
	} {
		if out, err := render(value); err == nil || !strings.Contains(out, part) {
			t.Errorf("%s: %v, want %s in\n%s", value, err, part, out)
		}
	}
}

// What is rendered is valid for the API, strictly.
func TestConforms(t *testing.T) {
	needTools(t)
	schemas := makeSchemas(t)
	for name, values := range map[string][]string{"default": nil, "all": all, "network": network} {
		text, err := render(values...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		cmd := exec.Command(kubeconform, "-strict", "-summary", "-skip", "PodMonitor,PrometheusRule", "-schema-location", schemas+"/{{.ResourceKind}}.json")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Errors: 0") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	wrong := "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: a, nome: b}\n"
	cmd := exec.Command(kubeconform, "-strict", "-schema-location", schemas+"/{{.ResourceKind}}.json")
	cmd.Stdin = strings.NewReader(wrong)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("a wrong object is accepted: %s", out)
	}
}

// makeSchemas makes JSON schemas of the kinds that the chart has from the description of
// the API that Kubernetes' own module has, and returns their directory.
func makeSchemas(t *testing.T) string {
	t.Helper()
	list := exec.Command("go", "mod", "download", "-json", "k8s.io/kubernetes@v1.37.2")
	list.Dir = t.TempDir()
	out, err := list.Output()
	if err != nil {
		t.Fatalf("download Kubernetes' module: %v", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(module.Dir, "api/openapi-spec/swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(content, &api); err != nil {
		t.Fatal(err)
	}
	for _, d := range api.Definitions {
		if d["properties"] != nil {
			d["additionalProperties"] = false
		}
		if d["format"] == "int-or-string" {
			delete(d, "format")
			d["type"] = []string{"string", "integer"}
		}
	}
	dir := t.TempDir()
	for kind, definition := range map[string]string{
		"daemonset": "io.k8s.api.apps.v1.DaemonSet", "configmap": "io.k8s.api.core.v1.ConfigMap",
	} {
		schema, err := json.Marshal(map[string]any{"$ref": "#/definitions/" + definition, "definitions": api.Definitions})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, kind+".json"), schema, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A change of the settings changes the pods' template, so that they roll; a change of
// something else does not.
func TestRolls(t *testing.T) {
	needTools(t)
	sum := func(values ...string) string {
		text, err := render(values...)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		_, after, found := strings.Cut(text, "checksum/settings: ")
		if !found {
			t.Fatalf("no checksum in\n%s", text)
		}
		line, _, _ := strings.Cut(after, "\n")
		return line
	}
	if sum(network...) == sum(all...) {
		t.Error("the pods do not roll when they become the network")
	}
	node1 := `network={"enabled":true,"subnets":{"node1":"10.244.1.0/24"}}`
	if sum(node1) != sum(`network={"enabled":true,"subnets":{"node1":"10.244.1.0/24","node2":"10.244.2.0/24"}}`) {
		t.Error("the pods roll when another node joins")
	}
	if sum() == "" || sum() == sum(`settings={"admit":9}`) || sum() != sum(`podAnnotations={"a":"b"}`) {
		t.Errorf("checksums %q %q %q", sum(), sum(`settings={"admit":9}`), sum(`podAnnotations={"a":"b"}`))
	}
}

// Pods are not privileged, have no token and no runtime's socket, and mount no more of
// the node than they need.
func TestRights(t *testing.T) {
	needTools(t)
	text, err := render(all...)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, part := range []string{"privileged: true", ".sock", "path: /run/containerd\n", "serviceAccountName", "SYS_ADMIN", "kind: Role", "kind: ClusterRole"} {
		if strings.Contains(text, part) {
			t.Errorf("it has %q", part)
		}
	}
	containers := strings.Count(text, "image: localhost/scon:")
	for _, part := range []string{"readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "ALL"} {
		if n := strings.Count(text, part); n != containers {
			t.Errorf("%d of %d containers have %q", n, containers, part)
		}
	}
	for _, part := range []string{"automountServiceAccountToken: false", "priorityClassName: system-node-critical", "operator: Exists"} {
		if n := strings.Count(text, part); n != 2 {
			t.Errorf("%d of 2 pods have %q", n, part)
		}
	}
}

// Only the network's own container has SYS_ADMIN; those that install the plugin and remove
// it have no rights.
func TestNetworkRights(t *testing.T) {
	needTools(t)
	text, err := render(network...)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for part, want := range map[string]int{
		"SYS_ADMIN": 1, "capabilities: {drop: [ALL]}": 2, "privileged: true": 0, "args: [startup, serve]": 1,
		"args: [startup, plugin, /etc/scon/network-$(NODE).conflist]": 1, "args: [startup, plugin, --on-term]": 1,
	} {
		if n := strings.Count(text, part); n != want {
			t.Errorf("it has %q %d times, not %d", part, n, want)
		}
	}
}
