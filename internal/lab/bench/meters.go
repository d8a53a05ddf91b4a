package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/bench/peer"
)

// nearlyAll of the packets have to go the way that a mode stands for. The rest
// are the first ones of a connection and those that renew its lease.
const nearlyAll = 0.9

// meters are read before and after a measurement.
type meters struct {
	lab     *lab.Lab
	wire    string
	softirq *softirqMeter // nil without Step.Softirq
	daemon  *daemon       // nil without one
	between bool          // nothing crosses the uplink
}

// reading is what the meters show; all of it only grows.
type reading struct {
	// Packets of both directions by the device's own counters. The bridge
	// sees those that take a container's regular way.
	uplink, bridge uint64
	// Packets of the container by the daemon's counters, and why the regular
	// ones were that.
	express, regular uint64
	reasons          map[string]uint64

	softirqTime time.Duration // of all CPUs
	daemonTime  time.Duration // of the processor
	between     bool          // nothing crosses the uplink: its counter and the bridge's tell nothing
}

func (m meters) read() (r reading, err error) {
	r.between = m.between
	err = m.lab.Do(lab.Device, func() error {
		if r.uplink, err = countPackets(m.wire); err != nil {
			return err
		}
		r.bridge, err = countPackets(lab.Bridge)
		return err
	})
	if err != nil {
		return reading{}, err
	}
	if m.softirq != nil {
		if r.softirqTime, err = m.softirq.Total(); err != nil {
			return reading{}, err
		}
	}
	if m.daemon != nil {
		if err := m.daemon.read(&r); err != nil {
			return reading{}, err
		}
	}
	return r, nil
}

// countPackets of both directions of a device of the current namespace.
func countPackets(dev string) (uint64, error) {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return 0, fmt.Errorf("read the counters of %s: %w", dev, err)
	}
	statistics := l.Attrs().Statistics
	return statistics.RxPackets + statistics.TxPackets, nil
}

// since is what was added to an earlier reading.
func (r reading) since(before reading) reading {
	reasons := map[string]uint64{}
	for reason, n := range r.reasons {
		if n > before.reasons[reason] {
			reasons[reason] = n - before.reasons[reason]
		}
	}
	return reading{
		uplink:      r.uplink - before.uplink,
		bridge:      r.bridge - before.bridge,
		express:     r.express - before.express,
		regular:     r.regular - before.regular,
		reasons:     reasons,
		softirqTime: r.softirqTime - before.softirqTime,
		daemonTime:  r.daemonTime - before.daemonTime,
		between:     r.between,
	}
}

// sample is what a step yields, if the packets went the mode's way.
func (r reading) sample(mode Mode, step Step, m Measurement) (Sample, error) {
	if err := r.check(mode, step); err != nil {
		return Sample{}, err
	}
	m.UplinkPackets, m.SoftirqTime, m.DaemonTime = r.uplink, r.softirqTime, r.daemonTime
	s := Sample{
		Values:        step.Values(m),
		UplinkPackets: r.uplink,
		BridgePackets: r.bridge,
		ExpressShare:  r.expressShare(),
	}
	if step.Spec.Pattern == peer.Stream {
		s.Lost = m.Driven.Total - m.Served.Total
	}
	return s, nil
}

// expressShare of the container's packets as the daemon counts them, 0 to 1.
func (r reading) expressShare() float64 {
	if r.express == 0 {
		return 0
	}
	return float64(r.express) / float64(r.express+r.regular)
}

// check refuses a measurement whose packets did not go the way that the mode
// stands for. The kernel's counters are asked as well as the daemon's.
func (r reading) check(mode Mode, step Step) error {
	if (mode.express || mode.flowtable) && step.FewExpress {
		return nil
	}
	byBridge := float64(r.bridge) / float64(max(r.uplink, 1))
	switch {
	case !r.between && mode == Container && byBridge < nearlyAll:
		return fmt.Errorf("only %.1f %% of the packets went by the bridge, which a container's do", 100*byBridge)
	case !r.between && mode != Container && byBridge > 1-nearlyAll:
		return fmt.Errorf("%.1f %% of the packets went by the bridge%s", 100*byBridge, r.why())
	case mode.express && r.expressShare() < nearlyAll:
		return fmt.Errorf("only %.1f %% of the packets went express%s", 100*r.expressShare(), r.why())
	}
	return nil
}

// why lists the reasons for regular packets, the most frequent first.
func (r reading) why() string {
	if len(r.reasons) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(r.reasons), func(a, b string) int {
		if r.reasons[a] != r.reasons[b] {
			return int(r.reasons[b]) - int(r.reasons[a])
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, r.reasons[name])
	}
	return "; reasons: " + strings.Join(names, ", ")
}
