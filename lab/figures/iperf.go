package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/lab"
)

// iperfSeconds is iperf3's shortest duration.
const iperfSeconds = 1

// iperfPort of the first server at the edge.
const iperfPort = 5201

// tcpExperiment is Fig. 2a, 2b and 11: iperf3 sends messages from the device at
// full speed.
func tcpExperiment(e Effort) bench.Experiment {
	return bench.Experiment{
		Short: "throughput and softirq time of TCP messages through iperf3",
		Steps: iperfSteps(e, "tcp"),
	}
}

// udpExperiment is Fig. 15.
func udpExperiment(e Effort) bench.Experiment {
	return bench.Experiment{
		Short: "throughput and softirq time of UDP messages through iperf3",
		Steps: iperfSteps(e, "udp"),
	}
}

func iperfSteps(e Effort, proto string) (steps []bench.Step) {
	for _, size := range e.Sizes {
		name := fmt.Sprintf("%s_%d", proto, size)
		steps = append(steps, bench.Step{
			Name: name,
			Metrics: []bench.Metric{
				{Name: name + "_mbps", Unit: "Mbit/s"},
				{Name: name + "_softirq_pct", Unit: "% of a CPU"},
				{Name: name + "_process_pct", Unit: "% of a CPU"},
				{Name: name + "_softirq_ns", Unit: "ns/packet"},
			},
			Traffic: func(ctx context.Context, s *bench.Site) (map[string]float64, error) {
				return runIperf(ctx, s, name, proto, size)
			},
		})
	}
	return steps
}

// scaleExperiment is Fig. 16: several containers, or processes, send at the same
// time and share a CPU.
func scaleExperiment(e Effort) bench.Experiment {
	x := bench.Experiment{Short: "throughput of one to four containers at once through iperf3"}
	for _, size := range e.ContainerSizes {
		for _, n := range e.Containers {
			x.Containers = max(x.Containers, n)
			name := scaleMetric(size, n)
			x.Steps = append(x.Steps, bench.Step{
				Name:    name,
				Metrics: []bench.Metric{{Name: name, Unit: "Mbit/s"}},
				Traffic: func(ctx context.Context, s *bench.Site) (map[string]float64, error) {
					clients, err := runClients(ctx, s, "tcp", size, n, func(int) error { return nil })
					if err != nil {
						return nil, err
					}
					var sum float64
					for _, c := range clients {
						sum += c.mbps
					}
					return map[string]float64{name: sum}, nil
				},
			})
		}
	}
	return x
}

func scaleMetric(size, containers int) string {
	return fmt.Sprintf("scale_%d_%d_mbps", size, containers)
}

func runIperf(ctx context.Context, s *bench.Site, name, proto string, size int) (values map[string]float64, err error) {
	cost, err := startCost(s, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cost.Close()) }()
	clients, err := runClients(ctx, s, proto, size, 1, cost.watch)
	if err != nil {
		return nil, err
	}
	usage, err := cost.Usage()
	if err != nil {
		return nil, err
	}
	values, err = cost.values(name, clients[0].elapsed, clients[0].cpu)
	if err != nil {
		return nil, err
	}
	values[name+"_mbps"] = clients[0].mbps
	values[name+"_softirq_ns"] = float64(usage.Softirq) / float64(usage.UplinkPackets)
	return values, nil
}

// iperfRun is the outcome of one client.
type iperfRun struct {
	mbps    float64 // received
	elapsed time.Duration
	cpu     time.Duration // of the client
}

// runClients has n nodes send at the same time, each to a server of its own. It
// calls watch with the process of each client.
func runClients(ctx context.Context, s *bench.Site, proto string, size, n int, watch func(pid int) error) ([]iperfRun, error) {
	runs := make([]iperfRun, n)
	together, ctx := errgroup.WithContext(ctx)
	for i := range runs {
		server := netip.AddrPortFrom(lab.EdgeAddr, iperfPort+uint16(i))
		p, err := iperf3.start(ctx, s, lab.Edge, s.SecondCPU, nil, nil,
			"--server", "--bind", server.Addr().String(), "--port", strconv.Itoa(int(server.Port())))
		if err != nil {
			return nil, err
		}
		defer p.stop()
		if err := p.waitListening(ctx, s, lab.Edge, server.Port()); err != nil {
			return nil, err
		}
		together.Go(func() (err error) {
			runs[i], err = runClient(ctx, s, s.Node(i+1), server, proto, size, watch)
			return err
		})
	}
	return runs, together.Wait()
}

func runClient(ctx context.Context, s *bench.Site, node string, server netip.AddrPort, proto string, size int, watch func(pid int) error) (iperfRun, error) {
	args := []string{"--client", server.Addr().String(), "--port", strconv.Itoa(int(server.Port())),
		"--json", "--time", strconv.Itoa(iperfSeconds), "--length", strconv.Itoa(size)}
	if proto == "udp" {
		args = append(args, "--udp", "--bitrate", "0")
	} else {
		args = append(args, "--no-delay")
	}
	var out bytes.Buffer
	p, err := iperf3.start(ctx, s, node, s.FirstCPU, nil, &out, args...)
	if err != nil {
		return iperfRun{}, err
	}
	if err := errors.Join(watch(p.Process.Pid), p.end()); err != nil {
		return iperfRun{}, fmt.Errorf("%w: %s", err, iperfError(out.Bytes()))
	}
	run, err := parseIperf(out.Bytes(), proto)
	run.cpu = p.ProcessState.UserTime() + p.ProcessState.SystemTime()
	return run, err
}

// iperfReport is what is used here of iperf3's report.
type iperfReport struct {
	Error string
	End   struct {
		Received struct {
			Bytes   float64
			Seconds float64
		} `json:"sum_received"`
		Sum struct { // UDP, counted by the sender
			Bytes   float64
			Seconds float64
			Packets float64
			Lost    float64 `json:"lost_packets"`
		}
	}
}

func iperfError(out []byte) string {
	var report iperfReport
	if json.Unmarshal(out, &report) != nil {
		return "no report"
	}
	return report.Error
}

// parseIperf parses a client's report.
func parseIperf(out []byte, proto string) (iperfRun, error) {
	var report iperfReport
	if err := json.Unmarshal(out, &report); err != nil {
		return iperfRun{}, fmt.Errorf("read the report of iperf3: %w", err)
	}
	end := report.End
	received, seconds := end.Received.Bytes, end.Received.Seconds
	if proto == "udp" {
		received, seconds = end.Sum.Bytes*(1-end.Sum.Lost/max(end.Sum.Packets, 1)), end.Sum.Seconds
	}
	if received <= 0 || seconds <= 0 {
		return iperfRun{}, errors.New("iperf3 received nothing")
	}
	return iperfRun{
		mbps:    received * 8 / seconds / 1e6,
		elapsed: time.Duration(seconds * float64(time.Second)),
	}, nil
}
