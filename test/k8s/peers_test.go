package k8s

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Flags of TestPeers, which test/peers calls.
var (
	report = flag.String("report", "", "directory for a report about Kubernetes' own specs in the cluster \"dual\"; none: the test is skipped")
	focus  = flag.String("focus", "", "regular expression of the specs' names")
	apart  = flag.String("apart", "", "regular expression of names to leave out")
	chart  = flag.Bool("chart", true, "install SCON's chart before")
)

// Kubernetes' own specs run in a cluster of two address families. The directory gets
// report.json, which is Ginkgo's, and with the chart counts.json: the statuses of both
// nodes' daemons. Whether specs fail is left to who reads the report.
func TestPeers(t *testing.T) {
	if *report == "" {
		t.Skip("make test-peers runs specs")
	}
	c := &cluster{t: t, proxy: "nftables", network: "dual"}
	c.prepare(specImages(t)...)
	c.awaitNodes(" Ready ")
	if *chart {
		c.install()
	}
	c.runDNS()
	c.runGinkgo(*focus, *apart, 3*time.Hour, *report)
	if !*chart {
		return
	}
	var counts []byte
	for n := 1; n <= 2; n++ {
		counts = append(counts, c.kubectl("-n", "scon-system", "exec", c.daemonOn(n), "-c", "scon", "--", "/usr/bin/scon", "status", "--json")...)
	}
	if err := os.WriteFile(filepath.Join(*report, "counts.json"), counts, 0o644); err != nil {
		t.Fatal(err)
	}
}
