package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/scon-project/scon/test/bed/needs"
)

// swarmClock measures the way from a container of one machine of a swarm to one of the
// other, by turns without SCON ("container") and with it on both machines ("express").
type swarmClock struct {
	client    func(args ...string) *exec.Cmd // a command in its network namespace
	addr      string                         // of the server
	gbits, us map[string][]float64
}

// newSwarmClock starts what answers: iperf3, and sockperf, which shares a CPU with its other
// end: otherwise most of a round trip is the interrupt that wakes a processor.
func newSwarmClock(t *testing.T, client, server *Container) *swarmClock {
	t.Helper()
	if err := needs.Check(needs.Program{Name: "iperf3", Package: "iperf3"}, needs.Program{Name: "sockperf", Package: "sockperf"}); err != nil {
		t.Fatal(err)
	}
	inside := func(c *Container) func(args ...string) *exec.Cmd {
		pid := c.engine.Docker(t, "inspect", "--format", "{{.State.Pid}}", c.Name)
		return func(args ...string) *exec.Cmd {
			return c.engine.Command("nsenter", append([]string{"--target", pid, "--net", "--"}, args...)...)
		}
	}
	c := &swarmClock{inside(client), server.Address, make(map[string][]float64), make(map[string][]float64)}
	there := inside(server)
	background(t, there("iperf3", "--server"))
	background(t, there("taskset", "--cpu-list", "0", "sockperf", "server", "--ip", c.addr))
	return c
}

var averageRTT = regexp.MustCompile(`avg-rtt=([0-9.]+)`)

// visit measures TCP in large segments and round trips of UDP for two seconds each.
func (c *swarmClock) visit(t *testing.T, mode string) {
	t.Helper()
	eventually(t, "iperf3 and sockperf answer", func() error {
		var report struct {
			End struct {
				Received struct {
					Bits float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			}
		}
		out, err := c.client("iperf3", "--client", c.addr, "--time", "2", "--json").Output()
		if err := errors.Join(err, json.Unmarshal(out, &report)); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		out, err = c.client("taskset", "--cpu-list", "0", "sockperf", "ping-pong", "--ip", c.addr,
			"--time", "2", "--full-rtt").CombinedOutput()
		found := averageRTT.FindSubmatch(out)
		if err != nil || found == nil {
			return fmt.Errorf("%v: %s", err, out)
		}
		us, err := strconv.ParseFloat(string(found[1]), 64)
		c.gbits[mode] = append(c.gbits[mode], report.End.Received.Bits/1e9)
		c.us[mode] = append(c.us[mode], us)
		return err
	})
}

// table logs the medians.
func (c *swarmClock) table(t *testing.T) {
	for what, of := range map[string]map[string][]float64{"TCP, Gbit/s": c.gbits, "UDP round trip, us": c.us} {
		plain, express := median(of["container"]), median(of["express"])
		t.Logf("| %s | %.2f | %.2f | %.2f | %.1f and %.1f", what, plain, express, express/plain, of["container"], of["express"])
	}
}

func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
