package appbench

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/scon-project/scon/test/bed/machine"
	"github.com/scon-project/scon/test/bed/needs"
)

// programs are those that the bench runs.
var programs = append(slices.Clone(needs.Docker), []needs.Program{
	{Name: "nginx", Package: "nginx-light"}, {Name: "wrk", Package: "wrk"}, {Name: "ab", Package: "apache2-utils"}, {Name: "mosquitto", Package: "mosquitto"},
	{Name: "busybox", Package: "busybox-static"}, {Name: "nsenter", Package: "util-linux"}, {Name: "taskset", Package: "util-linux"}, {Name: "ip", Package: "iproute2"}, {Name: "iptables", Package: "iptables"},
}...)

// report is what a client measured.
type report struct {
	perSecond float64 // requests
	p50, p99  float64 // us
}

// wrkFile is where the machine has wrkScript.
const wrkFile = "/run/wrk.lua"

// wrkScript has wrk print its figures in one line, with all their digits.
const wrkScript = `done = function(s, l, r)
	local e = s.errors
	io.write(string.format("figures %d %d %d %d %d\n", s.requests, s.duration, l:percentile(50), l:percentile(99),
		e.connect + e.read + e.write + e.status + e.timeout))
end
`

// figures is the line of wrkScript: requests, time, p50 and p99 in microseconds, errors.
var figures = regexp.MustCompile(`(?m)^figures (\d+) (\d+) (\d+) (\d+) (\d+)$`)

// wrk runs wrk at the edge. A request without an answer is an error.
func (b *bed) wrk(ctx context.Context, port int, l load) (report, error) {
	args := []string{"--cpu-list", strconv.Itoa(b.cpu), "wrk", "--threads", "1", "--connections", strconv.Itoa(l.connections),
		"--duration", fmt.Sprintf("%ds", b.seconds), "--script", wrkFile}
	for _, h := range l.headers {
		args = append(args, "--header", h)
	}
	out, err := b.atEdge(ctx, "taskset", append(args, fmt.Sprintf("http://%s:%d/%s", machine.HostAddr, port, l.page))...)
	if err != nil {
		return report{}, err
	}
	return parse(out)
}

// parse reads what wrk printed.
func parse(out string) (r report, err error) {
	m := figures.FindStringSubmatch(out)
	if m == nil {
		return r, fmt.Errorf("wrk printed no figures: %s", out)
	}
	var n [5]float64
	for i := range n {
		if n[i], err = strconv.ParseFloat(m[i+1], 64); err != nil {
			return r, err
		}
	}
	if n[4] > 0 || n[0] == 0 {
		return r, fmt.Errorf("%.0f of %.0f requests failed", n[4], n[0])
	}
	return report{perSecond: n[0] / n[1] * 1e6, p50: n[2], p99: n[3]}, nil
}
