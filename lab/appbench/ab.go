package appbench

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/scon-project/scon/test/bed/machine"
)

// abTimes is the machine's file with the times of ab's requests, by percentile.
const abTimes = "/run/ab.csv"

// ab runs ApacheBench at the edge, which asks by HTTP/1.0, with a connection for each
// request. A request without an answer is an error.
func (b *bed) ab(ctx context.Context, port int, l load) (report, error) {
	const enough = "1000000" // requests in the time
	out, err := b.atEdge(ctx, "taskset", "--cpu-list", strconv.Itoa(b.cpu), "ab", "-q", "-c", strconv.Itoa(l.connections),
		"-t", strconv.Itoa(b.seconds), "-n", enough, "-e", abTimes, fmt.Sprintf("http://%s:%d/%s", machine.HostAddr, port, l.page))
	if err != nil {
		return report{}, err
	}
	times, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", b.machine.PID(), abTimes))
	if err != nil {
		return report{}, err
	}
	return parseAB(out, string(times))
}

var (
	abRate   = regexp.MustCompile(`(?m)^Requests per second: +([0-9.]+) `)
	abFailed = regexp.MustCompile(`(?m)^(?:Failed requests|Non-2xx responses): +([1-9][0-9]*)$`)
)

// parseAB reads what ab printed, and its file of times: a line for each percentile, in
// milliseconds.
func parseAB(out, times string) (r report, err error) {
	rate := abRate.FindStringSubmatch(out)
	if rate == nil {
		return r, fmt.Errorf("ab printed no rate: %s", out)
	}
	if failed := abFailed.FindString(out); failed != "" {
		return r, fmt.Errorf("ab: %s", failed)
	}
	if r.perSecond, err = strconv.ParseFloat(rate[1], 64); err != nil {
		return r, err
	}
	lines, err := csv.NewReader(strings.NewReader(times)).ReadAll()
	if err != nil {
		return r, fmt.Errorf("times of ab's requests: %w", err)
	}
	for _, l := range lines {
		ms, err := strconv.ParseFloat(l[1], 64)
		switch {
		case l[0] == "50" && err == nil:
			r.p50 = ms * 1e3
		case l[0] == "99" && err == nil:
			r.p99 = ms * 1e3
		}
	}
	if r.p50 == 0 || r.p99 == 0 {
		return r, fmt.Errorf("ab's file has no times: %s", times)
	}
	return r, nil
}
