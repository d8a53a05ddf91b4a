package pipebench

import (
	"context"
	"fmt"
	"time"

	"github.com/scon-project/scon/lab/bench"
)

// The applications, as in the paper.
const (
	appContainers     = 8 // ranks; the chain uses five
	allreduceBytes    = 200 << 20
	allreduceMessage  = 1 << 20
	chainRequests     = 10_000
	chainDecrypters   = 2
	chainShort        = 1500
	chainLong         = 64 << 10
	smallBytes        = 4 << 20 // for tests
	smallMessage      = 300_000
	smallRequests     = 200
	firewallContainer = 2 // the client is in container 1
)

var appSteps = []step{
	{"allreduce", []bench.Metric{{Name: "allreduce_s", Unit: "s"}, {Name: "allreduce_cpu_s", Unit: "s"}}, takeAllreduce},
	{"chain_1k5", []bench.Metric{{Name: "chain_1k5_s", Unit: "s"}, {Name: "chain_1k5_cpu_s", Unit: "s"}}, chain("chain_1k5", chainShort)},
	{"chain_64k", []bench.Metric{{Name: "chain_64k_s", Unit: "s"}, {Name: "chain_64k_cpu_s", Unit: "s"}}, chain("chain_64k", chainLong)},
	{"iperf3", []bench.Metric{{Name: "iperf3_128k_gbps", Unit: "GB/s"}}, takeIperf},
}

// cpu returns the CPU of container n's program.
func (b *bed) cpu(n int) string {
	if n%2 == 1 {
		return fmt.Sprint(b.connects)
	}
	return fmt.Sprint(b.listens)
}

// together waits for all programs. It returns the time of the slowest and the
// processor time of all, including the broker's since before.
func (b *bed) together(programs []*program, brokerBefore time.Duration) (seconds, cpu float64, err error) {
	for _, p := range programs {
		var r report
		if err := p.end(&r); err != nil {
			return 0, 0, err
		}
		seconds, cpu = max(seconds, r.Seconds), cpu+r.CPU
	}
	after, err := b.broker.processTime()
	return seconds, cpu + (after - brokerBefore).Seconds(), err
}

// takeAllreduce sums a vector over a ring of ranks.
func takeAllreduce(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	bytes, message := allreduceBytes, allreduceMessage
	if b.options.small {
		bytes, message = smallBytes, smallMessage
	}
	before, err := b.broker.processTime()
	if err != nil {
		return nil, err
	}
	var addresses []string
	for n := range appContainers {
		address, _ := b.address(m, n+1)
		addresses = append(addresses, address)
	}
	var ranks []*program
	for n := range appContainers {
		p, err := b.start(ctx, m, n+1, allreduceProgram, nil, fmt.Sprint(n), fmt.Sprint(appContainers),
			addresses[n], addresses[(n+1)%appContainers], "--bytes", fmt.Sprint(bytes),
			"--message", fmt.Sprint(message), "--cpu", b.cpu(n+1))
		if err != nil {
			return nil, err
		}
		defer p.kill()
		ranks = append(ranks, p)
	}
	seconds, cpu, err := b.together(ranks, before)
	return map[string]float64{"allreduce_s": seconds, "allreduce_cpu_s": cpu}, err
}

// chain sends requests of a size through a chain of services.
func chain(metric string, size int) func(context.Context, *bed, mode) (map[string]float64, error) {
	return func(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		requests := chainRequests
		if b.options.small {
			requests = smallRequests
		}
		before, err := b.broker.processTime()
		if err != nil {
			return nil, err
		}
		var services []*program
		// serve starts a service in a container; the services behind it already
		// run.
		serve := func(n int, role string, behind ...string) (address string, err error) {
			address, _ = b.address(m, n)
			p, err := b.start(ctx, m, n, chainProgram, nil, append([]string{role, address, "--cpu", b.cpu(n)}, behind...)...)
			if err == nil {
				services = append(services, p)
				err = p.ready()
			}
			return address, err
		}
		defer func() {
			for _, p := range services {
				p.kill()
			}
		}()
		var decrypters []string
		for n := range chainDecrypters {
			address, err := serve(firewallContainer+2+n, "decrypter")
			if err != nil {
				return nil, err
			}
			decrypters = append(decrypters, address)
		}
		balancer, err := serve(firewallContainer+1, "balancer", decrypters...)
		if err != nil {
			return nil, err
		}
		firewall, err := serve(firewallContainer, "firewall", balancer)
		if err != nil {
			return nil, err
		}
		p, err := b.start(ctx, m, 1, chainProgram, nil, "client", firewall,
			"--requests", fmt.Sprint(requests), "--size", fmt.Sprint(size), "--cpu", b.cpu(1))
		if err != nil {
			return nil, err
		}
		services = append(services, p)
		var r report
		if err := p.end(&r); err != nil {
			return nil, err
		}
		_, cpu, err := b.together(services[:len(services)-1], before)
		return map[string]float64{metric + "_s": r.Seconds, metric + "_cpu_s": cpu + r.CPU}, err
	}
}
