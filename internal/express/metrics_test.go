package express_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/metricstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

// metricsAddr is in device.
const metricsAddr = "127.0.0.1:9477"

func newMetered(t *testing.T) *scontest.Bed {
	t.Helper()
	return scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Metrics = metricsAddr }})
}

// scraper requests the metrics' own address as Prometheus does.
func scraper(b *scontest.Bed) *http.Client {
	return &http.Client{Timeout: scontest.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			err = b.Do(lab.Device, func() error {
				conn, err = net.Dial(network, addr)
				return err
			})
			return conn, err
		},
	}}
}

// parse parses Prometheus' text format.
func parse(t *testing.T, text io.Reader) metricstest.Families {
	t.Helper()
	return metricstest.Parse(t, func(w io.Writer) error {
		_, err := io.Copy(w, text)
		return err
	})
}

// scrape fetches the metrics.
func scrape(t *testing.T, b *scontest.Bed) metricstest.Families {
	t.Helper()
	resp, err := scraper(b).Get("http://" + metricsAddr + api.MetricsPath)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Fatalf("status %s, %s", resp.Status, kind)
	}
	return parse(t, resp.Body)
}

// value adds the series of a name with a label, or all of them if it is ""; of histograms
// the counts.
func value(families metricstest.Families, name, label string) (sum uint64) {
	for _, m := range families[name].GetMetric() {
		match := label == ""
		for _, l := range m.Label {
			match = match || l.GetValue() == label
		}
		if match {
			sum += uint64(m.GetCounter().GetValue()+m.GetGauge().GetValue()) + m.GetHistogram().GetSampleCount()
		}
	}
	return sum
}

// The metrics agree with the daemon's status.
func TestMetrics(t *testing.T) {
	t.Parallel()
	b := newMetered(t)
	before := scrape(t, b)
	c := b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, "nft add table ip another")
	scontest.Eventually(t, "what has happened is counted", func() error {
		got := scrape(t, b)
		for name, more := range map[string]string{
			"scon_conentries_composed_total": "", "scon_heartbeats_total": "", "scon_changes_total": "ruleset",
			"scon_rules_unknown_seconds": "",
		} {
			if was, is := value(before, name, more), value(got, name, more); is <= was {
				return fmt.Errorf("%s was %d, is %d", name, was, is)
			}
		}
		return nil
	})
	c.MustPing(5)
	got, status := scrape(t, b), b.Status()
	container, _ := b.Container(1)
	for name, want := range map[string][2]uint64{
		"sent packets":     {container.ExpressSent.Packets, value(got, "scon_container_express_packets_total", "sent")},
		"received bytes":   {container.ExpressReceived.Bytes, value(got, "scon_container_express_bytes_total", "received")},
		"express packets":  {status.Totals.ExpressPackets, value(got, "scon_express_packets_total", "")},
		"regular packets":  {status.Totals.RegularPackets, value(got, "scon_container_regular_packets_total", "")},
		"Conentries":       {1, value(got, "scon_conentries", "")},
		"active":           {1, value(got, "scon_state", "active")},
		"other states":     {1, value(got, "scon_state", "")},
		"hooks of a port":  {2, value(got, "scon_hooks", "from_container") + value(got, "scon_hooks", "to_container")},
		"the limit":        {uint64(b.Config.Connections), value(got, "scon_conentries_limit", "")},
		"candidates taken": {1, value(got, "scon_conentries_composed_total", "")},
		"times of those":   {1, value(got, "scon_conentry_composing_seconds", "")},
	} {
		if want[0] != want[1] || want[0] == 0 {
			t.Errorf("%s: %d, metrics have %d", name, want[0], want[1])
		}
	}
	if sum := got["scon_conentry_composing_seconds"].Metric[0].Histogram.GetSampleSum(); sum <= 0 || sum > scontest.Patience.Seconds() {
		t.Errorf("the Conentry took %v s", sum)
	}
	var text bytes.Buffer
	if err := b.Daemon.Metrics(&text); err != nil {
		t.Fatal(err)
	}
	if value(parse(t, &text), "scon_generation", "") == 0 {
		t.Error("the socket has other metrics")
	}
}

// The metrics' own address serves nothing else.
func TestMetricsOnly(t *testing.T) {
	t.Parallel()
	b := newMetered(t)
	client := scraper(b)
	for _, path := range []string{"/", "/v1/status", "/v1/stop", "/metrics/x"} {
		resp, err := client.Post("http://"+metricsAddr+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	resp, err := client.Post("http://"+metricsAddr+api.MetricsPath, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", resp.Status)
	}
	b.Status() // it has not stopped
}

// A daemon that cannot listen on the configured address does not start.
func TestMetricsElsewhere(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) { c.Metrics = "192.0.2.1:9477" }})
	if words := b.Launch(b.Task()).Refused(); !strings.Contains(words, "offer metrics: listen tcp 192.0.2.1:9477") {
		t.Errorf("it said: %s", words)
	}
}
