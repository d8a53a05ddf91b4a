package services

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/metricstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

const (
	rulesFile     = "../../packaging/prometheus/rules.yaml"
	fleetFile     = "../../packaging/prometheus/fleet.yaml"
	agentFile     = "../../packaging/prometheus/agent.yml"
	dashboardFile = "../../packaging/grafana/scon.json"
)

// rule is an alert.
type rule struct {
	Alert, Expr, For string
	Annotations      map[string]string
}

func readRules(t *testing.T, path string) (all []rule) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// dashboard is what the tests read of dashboardFile.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ RefID, Expr string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	content, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// promtool runs Prometheus' tool.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command(installed(t, "promtool"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func installed(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("no %s: scripts/install-deps.sh prometheus installs it", program)
	}
	return path
}

// Each alert fires where it should, and only there; the document lists all.
func TestPrometheusAlerts(t *testing.T) {
	promtool(t, "", "check", "rules", rulesFile, fleetFile)
	promtool(t, "", "test", "rules", "testdata/rules.test.yaml")
	tests, err := os.ReadFile("testdata/rules.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, r := range append(readRules(t, rulesFile), readRules(t, fleetFile)...) {
		for _, name := range []string{r.Alert + " fires", r.Alert + " is quiet"} {
			if !strings.Contains(string(tests), "- name: "+name+"\n") {
				t.Errorf("no test %q", name)
			}
		}
		want = append(want, fmt.Sprintf("`%s` (`%s` for %s):", r.Alert, r.Expr, r.For))
	}
	for _, item := range metricstest.Items(string(document)) {
		if strings.HasPrefix(item, "`Scon") {
			got = append(got, item[:strings.Index(item, "):")+2])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/metrics.md differs (-rules +document):\n%s", diff)
	}
}

// The dashboard has the form that Grafana reads, and its panels do not overlap.
func TestPrometheusDashboard(t *testing.T) {
	parse := func(path string) any {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		document, err := jsonschema.UnmarshalJSON(f)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return document
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("dashboard", parse("testdata/dashboard.schema.json")); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("dashboard")
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(parse(dashboardFile)); err != nil {
		t.Error(err)
	}
	ids, cells := map[int]string{}, map[[2]int]string{}
	for _, p := range readDashboard(t).Panels {
		if other := ids[p.ID]; other != "" {
			t.Errorf("%q and %q have ID %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q is wider than the page", p.Title)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := cells[cell]; other != "" {
					t.Fatalf("%q covers %q", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
	}
}

// bound is what an alert compares with.
var bound = regexp.MustCompile(` (==|<|>) [0-9.]+$`)

// A real Prometheus scrapes the three services under traffic: each query of the alerts,
// without the bound, and of the dashboard has values.
func TestPrometheusScrapes(t *testing.T) {
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2, Service: true, Config: func(c *config.Config) {
		c.Startup.Enabled, c.Startup.Pool = true, config.Pool{WarmTarget: 2, Minimum: 1, Maximum: 2, MemoryLimit: 1 << 20, Cooldown: time.Second}
		c.Pipe.Enabled = true
		c.Metrics, c.Startup.Metrics, c.Pipe.Metrics = "127.0.0.1:9477", "127.0.0.1:9478", "127.0.0.1:9479"
	}})
	b.Serve(state.Startup)
	b.Serve(state.Pipe)
	traffic, server := b.StartTraffic(), scrape(b)
	load := startLoad(b)
	defer load.stop()

	queries := map[string]string{}
	for _, r := range readRules(t, rulesFile) {
		left := bound.ReplaceAllString(r.Expr, "")
		if left == r.Expr {
			t.Fatalf("%s: %s compares with nothing", r.Alert, r.Expr)
		}
		queries[r.Alert] = left
	}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			queries[p.Title+" "+target.RefID] = target.Expr
		}
	}
	judged := b.Outgoing("udp", 1)
	b.Sh(lab.Device, fmt.Sprintf(`nft add table ip judge
		nft add chain ip judge forward { type filter hook forward priority 0 ; }
		nft add rule ip judge forward udp dport %d limit rate 1000000/second accept`, scontest.PortOf(judged.Client.RemoteAddr())))
	act := func() {
		judged.MustPing(8)
		traffic.Proceed()
		load.proceed()
		c := b.Outgoing("udp", 2)
		c.MustPing(8)
		c.Close()
		b.Sh(lab.Device, "nft add table ip another\nnft delete table ip another")
		p := newPod(b, "comes")
		p.ask("ADD")
		p.ask("DEL")
		p.remove()
	}
	for name, query := range queries {
		scontest.Eventually(t, name+" has a value", func() error {
			err := server.query(query)
			if err != nil {
				act()
			}
			return err
		})
	}
	if err := server.query(`count(up == 1) == 3`); err != nil {
		t.Error(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := server.get("rules", nil, &rules); err != nil {
		t.Fatal(err)
	}
	for _, r := range rules.Groups[0].Rules {
		if r.Health != "ok" {
			t.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
		}
	}
	for _, address := range []string{b.Config.Metrics, b.Config.Startup.Metrics, b.Config.Pipe.Metrics} {
		response, err := server.client.Get("http://" + address + api.MetricsPath)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		promtool(t, string(text), "check", "metrics")
	}
}

// prometheus is a server in a node.
type prometheus struct {
	client http.Client
	end
}

// scrape has a Prometheus in the node of the daemon collect from all services.
func scrape(b *scontest.Bed) *prometheus {
	b.T.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		b.T.Fatal(err)
	}
	p := startPrometheus(b, lab.Device, fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [%s]
scrape_configs:
- job_name: scon
  static_configs: [{targets: ["127.0.0.1:9477", "127.0.0.1:9478", "127.0.0.1:9479"]}]
`, rules), "--storage.tsdb.path=tsdb")
	scontest.Eventually(b.T, "Prometheus has scraped all services", func() error { return p.query("count(up) == 3") })
	return p
}

// startPrometheus starts a Prometheus in a node with settings.
func startPrometheus(b *scontest.Bed, node, settings string, args ...string) *prometheus {
	t := b.T
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", append([]string{"--net=" + b.Node(node), installed(t, "prometheus"),
		"--config.file=" + file, "--web.listen-address=:9090", "--log.level=warn"}, args...)...)
	cmd.Dir = dir // paths of its data are relative
	server := launch(b, cmd)
	t.Cleanup(server.kill)
	return &prometheus{http.Client{Timeout: scontest.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			err = b.Do(node, func() error {
				conn, err = net.Dial(network, addr)
				return err
			})
			return conn, err
		},
	}}, server}
}

// query returns an error unless a query has a value.
func (p *prometheus) query(expr string) error {
	var data struct{ Result []struct{ Value [2]any } }
	if err := p.get("query", url.Values{"query": {expr}}, &data); err != nil {
		return fmt.Errorf("%s: %w", expr, err)
	}
	if !slices.ContainsFunc(data.Result, func(r struct{ Value [2]any }) bool {
		n, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		return err == nil && n == n
	}) {
		return fmt.Errorf("%s: no value in %v", expr, data.Result)
	}
	return nil
}

// get requests something of Prometheus' API.
func (p *prometheus) get(what string, values url.Values, data any) error {
	response, err := p.client.Get("http://127.0.0.1:9090/api/v1/" + what + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return nil
}
