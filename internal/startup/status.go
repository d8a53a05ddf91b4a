package startup

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sort"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/startup/control"
)

var _ control.Agent = (*Agent)(nil)

// Startup returns the agent's state.
func (a *Agent) Startup() (control.Startup, error) {
	s := control.Startup{
		Networks: []control.StartupNetwork{}, Attachments: []control.StartupAttachment{},
		Stages: make(map[string]control.StartupStage), TimeoutMS: a.stages.timeout().Milliseconds(),
	}
	times := a.stages.times()
	for stage, g := range a.stages.states() {
		s.Stages[string(stage)] = control.StartupStage{Limit: g.Limit, Inside: g.Inside, Waiting: g.Waiting, Late: g.Late, Ended: times[stage].Count}
	}
	s.HandedOver, s.InPlace = a.tally.counts()
	for _, n := range a.networks.all() {
		s.Networks = append(s.Networks, n.status())
	}
	for _, r := range a.records.all() {
		at := control.StartupAttachment{
			Network: r.Network.Name, Container: r.ContainerID, IfName: r.IfName, Netns: r.Netns, Host: r.Host,
			Addresses: []string{}, Pooled: r.Pooled != "",
		}
		for _, l := range r.Leases {
			at.Addresses = append(at.Addresses, l.Address.String())
		}
		s.Attachments = append(s.Attachments, at)
	}
	sort.SliceStable(s.Networks, func(i, j int) bool { return s.Networks[i].Name < s.Networks[j].Name })
	sort.SliceStable(s.Attachments, func(i, j int) bool {
		x, y := &s.Attachments[i], &s.Attachments[j]
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.Container, y.Container), cmp.Compare(x.IfName, y.IfName)) < 0
	})
	return s, nil
}

func (n *network) status() control.StartupNetwork {
	s := control.StartupNetwork{Name: n.conf.Name, Kind: n.conf.Kind}
	if n.space != nil {
		s.Addresses = n.space.Taken()
	}
	if n.pool != nil {
		p := n.pool.Stats()
		s.Pool = &control.StartupPool{
			Ready: p.Ready, Target: p.Target, Taken: p.Taken, Missed: p.Missed, Made: p.Made,
			Failure: p.Failure, Bytes: int64(p.Ready) * config.NamespaceMemory,
		}
	}
	return s
}

// Owners returns the owners of the host's devices and a channel of later changes, which ends
// with ctx or the agent, or when the listener does not keep up.
func (a *Agent) Owners(ctx context.Context) (now []api.Owner, changes <-chan []api.Owner) {
	return a.owners.follow(ctx)
}

// StartupEvents returns finished stages, from a number on.
func (a *Agent) StartupEvents(from uint64) (control.StartupEvents, error) {
	events, next := a.stages.since(from)
	all := control.StartupEvents{Events: []control.StartupEvent{}, Next: next}
	for _, e := range events {
		all.Events = append(all.Events, control.StartupEvent{
			Container: e.Container, Stage: string(e.Stage), BeginNS: e.BeginNS, EndNS: e.EndNS, WaitNS: e.WaitNS,
		})
	}
	return all, nil
}

// SetStartupLimits changes the limits of the stages.
func (a *Agent) SetStartupLimits(l control.StartupLimits) error {
	c := config.Default()
	c.Startup.Limits = config.Limits{
		NetNS: l.NetNS, AddCNI: l.AddCNI, Cgroup: l.Cgroup, AttachIf: l.AttachIf, StartVM: l.StartVM,
		Timeout: cmp.Or(time.Duration(l.TimeoutMS)*time.Millisecond, a.stages.timeout()),
	}
	if err := c.Validate(); err != nil {
		return &api.Error{Status: http.StatusBadRequest, Message: err.Error()}
	}
	a.stages.set(c.Startup.Limits)
	return nil
}

// FillStartupPool fills a network's pool to a number of namespaces.
func (a *Agent) FillStartupPool(ctx context.Context, f control.StartupFill) error {
	n := a.networks.named(f.Network)
	switch {
	case n == nil:
		return &api.Error{Status: http.StatusNotFound, Message: unknownNetworkError(f.Network).Error()}
	case n.pool == nil:
		return &api.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("network %q has no pool: startup.pool.warm_target is 0, or another IPAM plugin leases its addresses", f.Network)}
	}
	return n.pool.Fill(ctx, f.Count)
}

func unknownNetworkError(name string) error {
	return fmt.Errorf("network %q is not known: it becomes known by its first ADD, or by startup.networks", name)
}
