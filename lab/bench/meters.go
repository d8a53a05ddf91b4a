package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// nearlyAll is the share of the packets that must take the mode's path. The rest
// are the first packets of a connection and those that renew its lease.
const nearlyAll = 0.9

// some is the share of the packets of short connections that must go express where
// conntrack is liberal.
const some = 0.25

// meters are the counters that are read before and after a measurement.
type meters struct {
	lab      *lab.Lab
	wire     string
	softirq  *softirqMeter // nil without Step.Softirq
	daemon   *daemon       // nil in modes without a daemon
	byBridge bool          // see reading
}

// reading holds the values of the meters, which only grow.
type reading struct {
	// Packets of both directions by the devices' own counters. The bridge counts
	// those on a container's regular path.
	uplink, bridge uint64
	// Packets of the container by the daemon's counters, and the reasons of the
	// regular ones.
	express, regular uint64
	reasons          map[string]uint64

	softirqTime time.Duration // of all CPUs
	daemonTime  time.Duration // processor time of the daemon
	inert       time.Duration // how long everything was regular because rules had changed
	byBridge    bool          // the counters of uplink and bridge do not tell the path: a bridge does not count what it forwards
}

func (m meters) read() (r reading, err error) {
	r.byBridge = m.byBridge
	err = m.lab.Do(lab.Device, func() error {
		if r.uplink, err = CountPackets(m.wire); err != nil {
			return err
		}
		r.bridge, err = CountPackets(lab.Bridge)
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

// CountPackets returns the packets of both directions of a device in the current
// namespace.
func CountPackets(dev string) (uint64, error) {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return 0, fmt.Errorf("read the counters of %s: %w", dev, err)
	}
	statistics := l.Attrs().Statistics
	return statistics.RxPackets + statistics.TxPackets, nil
}

// since returns the difference from an earlier reading.
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
		inert:       r.inert - before.inert,
		byBridge:    r.byBridge,
	}
}

// sample returns the sample of a step if the packets took the mode's path.
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

// expressShare is the express share of the container's packets by the daemon's
// counters, 0 to 1.
func (r reading) expressShare() float64 {
	if r.express == 0 {
		return 0
	}
	return float64(r.express) / float64(r.express+r.regular)
}

// check returns an error if the packets did not take the mode's path. It uses the
// kernel's counters as well as the daemon's.
func (r reading) check(mode Mode, step Step) error {
	if mode.short && step.FewExpress && r.expressShare() < some {
		return fmt.Errorf("only %.1f %% of the packets of short connections went express%s", 100*r.expressShare(), r.why())
	}
	if (mode.express || mode.flowtable) && step.FewExpress {
		return nil
	}
	byBridge := float64(r.bridge) / float64(max(r.uplink, 1))
	switch {
	case !r.byBridge && mode == Container && byBridge < nearlyAll:
		return fmt.Errorf("only %.1f %% of the packets crossed the bridge, want nearly all of a container's", 100*byBridge)
	case !r.byBridge && mode != Container && byBridge > 1-nearlyAll:
		return fmt.Errorf("%.1f %% of the packets crossed the bridge%s", 100*byBridge, r.why())
	case mode.regular && r.express > 0:
		return fmt.Errorf("%d packets went express, want none", r.express)
	case mode.express && !mode.regular && r.expressShare() < nearlyAll:
		return fmt.Errorf("only %.1f %% of the packets went express%s", 100*r.expressShare(), r.why())
	}
	return nil
}

// why lists the reasons of regular packets, the most frequent first.
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
