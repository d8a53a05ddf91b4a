package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// cpusConnections is the number of connections of each CPU in CPUs.
const cpusConnections = 4

// CPUs shows whether packets on one CPU slow down those on another: exchanges on one CPU,
// and on two at the same time, each with connections of its own, of two containers or of
// the host.
var CPUs = Experiment{
	Name:       "cpus",
	Short:      "exchanges on one CPU, and on two at the same time, of the host and of two containers",
	Modes:      []Mode{Native, Loaded, Container, Flowtable, Express},
	Rounds:     12,
	Containers: 2,
	Steps: []Step{{
		Name: "cpus",
		Metrics: []Metric{
			{"one_cpu_per_s", "exchanges/s"},
			{"two_cpus_per_s", "exchanges/s"},
			{"speedup", "times"},
		},
		Traffic: func(_ context.Context, s *Site) (map[string]float64, error) { return s.cpus() },
	}},
	Pairs: [][2]string{
		{Loaded.Name, Native.Name},
		{Express.Name, Container.Name},
		{Express.Name, Flowtable.Name},
	},
}

// cpus measures a sample of CPUs.
func (s *Site) cpus() (map[string]float64, error) {
	var crowds []*peer.Crowd
	for n := range 2 {
		c, err := peer.OpenCrowd(s.lab.Node(lab.Edge), s.lab.Node(s.Node(n+1)), lab.EdgeAddr, cpusConnections)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		for range warmUp {
			if err := c.Each(); err != nil {
				return nil, err
			}
			time.Sleep(time.Millisecond)
		}
		crowds = append(crowds, c)
	}
	one, err := crowds[0].Random(s.SecondCPU, quickDuration)
	if err != nil {
		return nil, err
	}
	var reports [2]peer.Report
	var both errgroup.Group
	for i, cpu := range []int{s.SecondCPU, s.FirstCPU} {
		both.Go(func() (err error) {
			reports[i], err = crowds[i].Random(cpu, quickDuration)
			return err
		})
	}
	if err := both.Wait(); err != nil {
		return nil, err
	}
	two := reports[0].PerSecond() + reports[1].PerSecond()
	return map[string]float64{"one_cpu_per_s": one.PerSecond(), "two_cpus_per_s": two, "speedup": two / one.PerSecond()}, nil
}
