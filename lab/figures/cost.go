package figures

import (
	"time"

	"github.com/scon-project/scon/lab/bench"
)

// cost is the processor time that traffic uses on the device: of the network
// softirqs, of the process that serves or sends, and of SCON's daemon.
type cost struct {
	*bench.Meter
	site            *bench.Site
	pid             int
	process, daemon time.Duration // at the start
}

// startCost starts measuring with a process that already runs; pid is 0 if it does
// not run yet.
func startCost(s *bench.Site, pid int) (c *cost, err error) {
	c = &cost{site: s}
	if c.Meter, err = s.OpenMeter(); err != nil {
		return nil, err
	}
	if c.daemon, err = s.DaemonTime(); err == nil && pid != 0 {
		err = c.watch(pid)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// watch sets the process.
func (c *cost) watch(pid int) (err error) {
	c.pid = pid
	if c.process, err = bench.ProcessTime(pid); err != nil {
		return err
	}
	return c.Watch(pid)
}

// values returns the metrics NAME_softirq_pct, NAME_process_pct, which includes the
// daemon's time, and NAME_cpu_pct, their sum. used is the processor time of a
// process that has exited; 0 if it still runs.
func (c *cost) values(name string, elapsed, used time.Duration) (map[string]float64, error) {
	usage, err := c.Usage()
	if err != nil {
		return nil, err
	}
	if used == 0 {
		now, err := bench.ProcessTime(c.pid)
		if err != nil {
			return nil, err
		}
		used = now - c.process
	}
	daemon, err := c.site.DaemonTime()
	if err != nil {
		return nil, err
	}
	process := used - usage.Above + daemon - c.daemon
	return map[string]float64{
		name + "_softirq_pct": percent(usage.Softirq, elapsed),
		name + "_process_pct": percent(process, elapsed),
		name + "_cpu_pct":     percent(usage.Softirq+process, elapsed),
	}, nil
}
