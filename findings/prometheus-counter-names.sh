#!/bin/sh
# Prometheus: what a counter is called, and whether it is one, depends on who asks.
#
# Seen with client_golang v1.23.2 and prometheus_client 0.23.1 (Python): a counter whose name does not
# end in _total, which the first one registers, is a counter in the text format. In OpenMetrics,
# for which Prometheus asks the same handler, its type is unknown; beside a counter with the same
# name and _total there are two types of one name. The Python parser of the text format renames
# it, while the Go parser does not: a program's counters "packets" and "packets_total" are one
# there, with two values.
#
# What it taught: only a name that ends in _total means the same to all. SCON's counters do
# (internal/metrics, TestCountersEndInTotal).
#
# Needs Go and Python; run anywhere. Exit status 1: the packages behave otherwise.
set -eu

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
mkdir "$dir/work"
cd "$dir/work"
cat >go.mod <<'END'
module finding

go 1.24

require (
	github.com/prometheus/client_golang v1.23.2
	github.com/prometheus/common v0.66.1
)
END
cat >main.go <<'END'
package main

import (
	"bytes"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func main() {
	r := prometheus.NewRegistry()
	for i, name := range []string{"packets", "packets_total"} {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "Packets."})
		c.Add(float64(i + 1))
		r.MustRegister(c)
	}
	show(r, "text/plain")
	show(r, "application/openmetrics-text; version=1.0.0")
	text := get(r, "text/plain")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"packets", "packets_total"} {
		fmt.Println("read by Go:", name, families[name].Metric[0].Counter.GetValue())
	}
	if err := os.WriteFile("text", text, 0o600); err != nil {
		log.Fatal(err)
	}
}

func get(r *prometheus.Registry, accept string) []byte {
	h := promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", accept)
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, request)
	return answer.Body.Bytes()
}

// show prints the types that a client is told for one name.
func show(r *prometheus.Registry, accept string) {
	for line := range strings.Lines(string(get(r, accept))) {
		if strings.HasPrefix(line, "# TYPE packets ") {
			fmt.Print(accept, ": ", line)
		}
	}
}
END
(
	export GOFLAGS=-mod=mod GOPATH="$dir/go" GOWORK=off
	go mod tidy 2>log && go build -o serve . 2>log || { cat log >&2; exit 2; }
)
python3 -m pip install --quiet --root-user-action ignore --target "$dir/python" --no-deps prometheus_client==0.23.1
{
	./serve
	PYTHONPATH=$dir/python python3 - <<'END'
from prometheus_client.parser import text_string_to_metric_families

with open("text") as text:
    for family in text_string_to_metric_families(text.read()):
        for sample in family.samples:
            print("read by Python:", sample.name, sample.value)
END
} >out
cat out
[ "$(cat out)" = 'text/plain: # TYPE packets counter
application/openmetrics-text; version=1.0.0: # TYPE packets unknown
application/openmetrics-text; version=1.0.0: # TYPE packets counter
read by Go: packets 1
read by Go: packets_total 2
read by Python: packets_total 1
read by Python: packets_total 2' ]
