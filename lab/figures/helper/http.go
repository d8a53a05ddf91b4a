package helper

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"fortio.org/fortio/fhttp"
	"fortio.org/fortio/periodic"
	"fortio.org/log"

	"github.com/scon-project/scon/lab/figures"
)

// loadHTTP sends requests at a constant rate with fortio and measures the latency
// of each.
func loadHTTP(order figures.HTTPOrder, _ *json.Encoder) (figures.Report, error) {
	log.SetLogLevel(log.Error)
	latencies := newLatencies()
	o := fhttp.HTTPRunnerOptions{
		RunnerOptions: periodic.RunnerOptions{
			QPS:          order.Rate,
			Duration:     order.Duration,
			NumThreads:   order.Connections,
			Uniform:      true,
			Out:          io.Discard,
			AccessLogger: accessLog{latencies},
		},
	}
	o.Init(order.URL)
	o.HTTPReqTimeOut = 3 * time.Second
	cpu := processTime()
	result, err := fhttp.RunHTTPTest(&o)
	if err != nil {
		return figures.Report{}, fmt.Errorf("load %s: %w", order.URL, err)
	}
	report := latencies.report()
	report.CPU = processTime() - cpu
	report.Elapsed = result.ActualDuration
	if n := int(result.RetCodes[http.StatusOK]); n != report.Messages || n == 0 {
		return figures.Report{}, fmt.Errorf("load %s: %d of %d answers are pages: %v", order.URL, n, report.Messages, result.RetCodes)
	}
	return report, nil
}

// accessLog records the exact latency of every request; fortio's own histogram has
// buckets.
type accessLog struct{ *latencies }

func (accessLog) Start(ctx context.Context, _ periodic.ThreadID, _ int64, _ time.Time) context.Context {
	return ctx
}

func (l accessLog) Report(_ context.Context, _ periodic.ThreadID, _ int64, _ time.Time, seconds float64, _ bool, _ string) {
	l.add(time.Duration(seconds * float64(time.Second)))
}

func (accessLog) Info() string { return "latencies" }
