package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/lab/bench"
)

// Load of Fig. 8: 2000 requests per second for a page of 64 bytes. The paper does
// not state the number of connections.
const (
	requestRate     = 2000
	httpConnections = 4
)

// nginxConf configures one page and a single process, so that its processor time is
// all of nginx's.
const nginxConf = `daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log stderr;
events { worker_connections 64; }
http {
	access_log off;
	keepalive_requests 1000000;
	client_body_temp_path %[1]s;
	server { listen %[2]s; root %[1]s; }
}
`

// httpExperiment is Fig. 8: nginx on the device, its clients at the edge, all on
// one CPU.
func httpExperiment(e Effort) bench.Experiment {
	return bench.Experiment{
		Short: "nginx under 2000 requests a second for 64 bytes",
		Steps: []bench.Step{{
			Name: "http",
			Metrics: []bench.Metric{
				{Name: "http_mean_us", Unit: "us"},
				{Name: "http_p50_us", Unit: "us"},
				{Name: "http_p99_us", Unit: "us"},
				{Name: "http_softirq_pct", Unit: "% of a CPU"},
				{Name: "http_process_pct", Unit: "% of a CPU"},
				{Name: "http_cpu_pct", Unit: "% of a CPU"},
				{Name: "http_rate", Unit: "requests/s"},
			},
			Traffic: func(ctx context.Context, s *bench.Site) (map[string]float64, error) {
				return runHTTP(ctx, s, e)
			},
		}},
	}
}

func runHTTP(ctx context.Context, s *bench.Site, e Effort) (values map[string]float64, err error) {
	folder, err := os.MkdirTemp("", "sconbench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	listen, reach := s.Server()
	conf := filepath.Join(folder, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, folder, listen), 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(folder, "page"), []byte(strings.Repeat("x", 64)), 0o644); err != nil {
		return nil, err
	}
	server, err := nginx.start(ctx, s, s.Node(1), s.SecondCPU, nil, nil, "-e", "stderr", "-c", conf)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	if err := server.waitListening(ctx, s, s.Node(1), listen.Port()); err != nil {
		return nil, err
	}

	cost, err := startCost(s, server.Process.Pid)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cost.Close()) }()
	report, err := carryOut(ctx, s, "edge", s.SecondCPU, "http", HTTPOrder{
		URL: fmt.Sprintf("http://%s/page", reach), Rate: requestRate,
		Connections: httpConnections, Duration: e.HTTP,
	})
	if err != nil {
		return nil, err
	}
	values, err = cost.values("http", report.Elapsed, 0)
	if err != nil {
		return nil, err
	}
	values["http_mean_us"] = microseconds(report.Mean)
	values["http_p50_us"] = microseconds(report.P50)
	values["http_p99_us"] = microseconds(report.P99)
	values["http_rate"] = float64(report.Messages) / report.Elapsed.Seconds()
	return values, nil
}
