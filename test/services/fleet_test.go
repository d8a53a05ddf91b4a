package services

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// agentMode returns the flag for Prometheus' agent mode, which was a feature to enable
// before Prometheus 3.
func agentMode(t *testing.T) string {
	t.Helper()
	help, err := exec.Command(installed(t, "prometheus"), "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("prometheus --help: %v: %s", err, help)
	}
	if strings.Contains(string(help), "[no-]agent ") {
		return "--agent"
	}
	return "--enable-feature=agent"
}

// A gateway's Prometheus in agent mode sends every series of the three services to a
// central one, where they have the site's and the gateway's names, and where alerts tell
// of a service that ends and of a site that is silent.
func TestPrometheusFleet(t *testing.T) {
	b := scontest.NewExpress(t, scontest.Layout{Service: true, Config: func(c *config.Config) {
		c.Startup.Enabled, c.Pipe.Enabled = true, true
		c.Metrics, c.Startup.Metrics, c.Pipe.Metrics = "127.0.0.1:9477", "127.0.0.1:9478", "127.0.0.1:9479"
	}})
	b.Serve(state.Startup)
	b.Serve(state.Pipe)

	var files []string
	for _, name := range []string{rulesFile, fleetFile} {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	central := startPrometheus(b, lab.Edge,
		fmt.Sprintf("global: {evaluation_interval: 500ms}\nrule_files: [%s]\n", strings.Join(files, ", ")),
		"--storage.tsdb.path=tsdb", "--web.enable-remote-write-receiver", "--query.lookback-delta=10s")
	settings, err := os.ReadFile(agentFile)
	if err != nil {
		t.Fatal(err)
	}
	agent := startPrometheus(b, lab.Device, strings.NewReplacer("SITE", "berlin", "GATEWAY", "gw7",
		"CENTRAL", b.Addr(lab.Edge).String(), "scrape_interval: 30s", "scrape_interval: 1s").Replace(string(settings)),
		agentMode(t), "--storage.agent.path=agent")

	// The targets' own counts of samples are the central one's numbers of series.
	for _, job := range []string{"scon", "scon-startup", "scon-pipe"} {
		scontest.Eventually(t, "all series of "+job, func() error {
			of := fmt.Sprintf(`job=%q,instance="gw7",site="berlin"`, job)
			return central.query(fmt.Sprintf(`count({__name__=~"(scon|process)_.+",%s}) == sum(scrape_samples_scraped{%s}) > 10`, of, of))
		})
	}
	pending := func(alert string) {
		t.Helper()
		scontest.Eventually(t, alert+" is pending", func() error { return central.query(fmt.Sprintf("ALERTS{alertname=%q,site=\"berlin\"}", alert)) })
	}
	if err := central.query(`ALERTS{alertname=~"Scon(ServiceDown|GatewaySilent|SiteSilent)"}`); err == nil {
		t.Error("an alert is pending while all is well")
	}
	b.Daemon.Kill()
	pending("SconServiceDown")
	agent.kill()
	pending("SconSiteSilent")
}
