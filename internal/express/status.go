package express

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/metrics"
)

// view reads the modules' state for clients and changes nothing. Its methods run
// in the loop.
type view struct {
	opts      *Options
	started   time.Time
	dp        *datapath.Datapath
	heartbeat *heartbeat
	table     *contable.Table
	grower    *grower
	policy    *policy
	hooks     *hooks.Hooks
	composer  *composer.Composer
	early     *composer.Early
	counts    *counts
}

func (d *Daemon) view() view {
	return view{
		&d.opts, d.started, d.dp, d.heartbeat, d.table, d.grower, &d.policy, d.hooks, d.composer, d.early, &d.counts,
	}
}

// portsOf returns the ports of a container by its name, ID or device.
func (v view) portsOf(container string) ([]*hooks.Port, error) {
	var ports []*hooks.Port
	known := make(map[string]bool)
	for _, p := range v.hooks.Ports() {
		c := p.Container
		if container == c.Name || container == c.ID || container == p.Name {
			ports = append(ports, p)
		}
		known[c.Name] = true
	}
	if len(ports) == 0 {
		return nil, &api.UnknownContainerError{Name: container, Known: slices.Sorted(maps.Keys(known))}
	}
	return ports, nil
}

func (v view) status() (api.Status, error) {
	cpu, err := metrics.CPUSeconds()
	if err != nil {
		return api.Status{}, err
	}
	byPort, sum := v.table.Totals()
	process, now := api.ThisProcess(v.opts.Version), time.Now()
	s := api.Status{
		State:      v.state(now),
		Kernel:     kernel(),
		Mode:       v.dp.Mode(),
		Generation: v.dp.Settings().Generation,
		Rules: api.Rules{
			Generation: v.policy.live.Generation(), Read: v.policy.read, Retired: v.composer.Retired(),
			Unknown: v.heartbeat.rulesUnknown().Sum.Seconds(),
		},
		Table:      v.grower.status(),
		Short:      api.Short{Express: v.early.Why() == "", Why: v.early.Why()},
		Hooks:      []api.Hook{},
		Containers: []api.Container{},
		Reasons:    make(map[string]uint64),
		Skipped:    append(skipped(v.hooks.Skipped()), overlays(v.hooks.Ports())...),
		PID:        process.PID,
		Version:    process.Version,
		StartedMS:  process.StartedMS,
		Layout:     datapath.LayoutVersion,
		CPUSeconds: cpu,
		Totals: api.Totals{
			Entries:        v.table.Len(),
			ExpressPackets: sum.Packets,
			ExpressBytes:   sum.Bytes,
			RegularPackets: v.hooks.PastRegular(),

			DiscardedPackets: v.table.Discarded().Packets,
		},
	}
	if f, inert := v.inertFinding(now); inert {
		s.Why = f.What + ": " + f.Why
	}
	for index, u := range v.hooks.Uplinks() {
		s.Hooks = append(s.Hooks, v.hooksOf(index, u.Name, datapath.UplinkHooks)...)
		counters, err := v.dp.Counters(index)
		if err != nil {
			return s, err
		}
		for reason, n := range counters.Reasons {
			s.Reasons[reason] += n
		}
	}
	for index, p := range v.hooks.Ports() {
		express := byPort[index]
		s.Hooks = append(s.Hooks, v.hooksOf(index, p.Name, p.Hooks())...)
		counters, err := v.dp.Counters(index)
		if err != nil {
			return s, err
		}
		s.Totals.RegularPackets += counters.Packets
		s.Containers = append(s.Containers, api.Container{
			Name:           p.Container.Name,
			ID:             p.Container.ID,
			Dev:            p.Name,
			Bridge:         p.Bridge.Name,
			Entries:        v.table.LenOf(index),
			Paused:         v.composer.IsPaused(p.Index),
			Withheld:       p.Withheld(),
			ExpressPackets: express.Packets,
			RegularPackets: counters.Packets,
			Reasons:        counters.Reasons,
			ExpressSent:    api.Count{Packets: express.SentPackets, Bytes: express.SentBytes},
			ExpressReceived: api.Count{
				Packets: express.Packets - express.SentPackets, Bytes: express.Bytes - express.SentBytes,
			},
			Origin: api.Origin(p.Container.Origin),
		})
	}
	sort.SliceStable(s.Hooks, func(i, j int) bool {
		a, b := &s.Hooks[i], &s.Hooks[j]
		return cmp.Or(a.Ifindex-b.Ifindex, cmp.Compare(a.Hook, b.Hook)) < 0
	})
	sort.SliceStable(s.Containers, func(i, j int) bool {
		a, b := &s.Containers[i], &s.Containers[j]
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dev, b.Dev)) < 0
	})
	return s, nil
}

func (v view) state(now time.Time) string {
	if v.heartbeat.isPaused() {
		return api.StatePaused
	}
	if _, inert := v.inertFinding(now); inert {
		return api.StateInert
	}
	return api.StateActive
}

// inertFinding says why nothing goes express for long, though SCON is not paused.
func (v view) inertFinding(now time.Time) (f api.Finding, inert bool) {
	if f, unread := v.policy.unreadFinding(); unread {
		return f, true
	}
	quiet := min(v.heartbeat.silence(now), now.Sub(v.started))
	if quiet <= silenceLimit {
		return f, false
	}
	f = api.Finding{Level: "fail", What: "every packet goes regular", Why: fmt.Sprintf("no heartbeat for %d ms", quiet.Milliseconds())}
	if _, unread := v.heartbeat.unread(); unread {
		f.Why += ", as changed rules are not known yet"
	}
	return f, true
}

func (v view) hooksOf(ifindex int, dev string, hooks []datapath.Hook) (all []api.Hook) {
	for _, h := range hooks {
		mode := v.dp.Mode()
		if h == datapath.FromNetkit {
			mode = discover.Netkit
		}
		all = append(all, api.Hook{Dev: dev, Ifindex: ifindex, Hook: h.String(), Mode: mode})
	}
	return all
}

func skipped(all []discover.Skipped) []api.Skipped {
	listed := make([]api.Skipped, 0, len(all))
	for _, s := range all {
		listed = append(listed, api.Skipped{Dev: s.Dev, Reason: s.Reason})
	}
	return listed
}

// overlays lists the networks of containers whose connections another daemon sees.
func overlays(ports map[int]*hooks.Port) (all []api.Skipped) {
	for _, p := range ports {
		for _, o := range p.Container.Overlays {
			s := api.Skipped{Dev: o.Name, Reason: o.String() + ": 'scon explain' of a container in it says what to do"}
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Dev < all[j].Dev })
	return all
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
