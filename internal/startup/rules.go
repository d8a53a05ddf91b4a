package startup

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// lull is the minimum time between two checks of the rules.
const lull = time.Second

// guard is what the loop that restores rules hears and tells.
type guard struct {
	pulse   *service.Pulse
	changed chan struct{} // signals that rules have changed
}

// RulesChanged makes the agent check its rules: another program that loads rules may
// have removed them.
func (a *Agent) RulesChanged() {
	select {
	case a.guard.changed <- struct{}{}:
	default: // a check is pending
	}
}

// guardRules restores the agent's rules until the agent ends.
func (a *Agent) guardRules() {
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	beat := time.NewTicker(service.PulseInterval)
	defer beat.Stop()
	var soon <-chan time.Time
	var checked time.Time
	for {
		a.guard.pulse.Beat()
		select {
		case <-beat.C:
			continue
		case <-a.ctx.Done():
			return
		case <-tick.C:
		case <-a.guard.changed:
			if soon == nil {
				soon = time.After(time.Until(checked.Add(lull)))
			}
			continue
		case <-soon:
		}
		soon = nil
		if err := a.keepRules(); err != nil {
			a.log.Error("restore missing rules", "error", err)
		}
		checked = time.Now()
	}
}

// keepRules restores missing rules of networks and of their containers.
func (a *Agent) keepRules() error {
	confs, networks := a.networks.onHost(), a.networks.all()
	var containers []devices.Spec
	records := make(map[string]*Record)
	for _, r := range a.records.all() {
		if len(r.Network.Rules) > 0 {
			containers = append(containers, devices.Spec{Conf: &cni.Conf{Network: r.Network}, Host: r.Host, Leases: r.Leases})
			records[r.Host] = r
		}
	}
	var errs []error
	guarded := len(containers) > 0
	for _, n := range networks {
		if confs[n.conf.Name] == n.conf {
			n.mu.Lock()
			confs[n.conf.Name] = n.withLearned()
			n.mu.Unlock()
		}
		guarded = guarded || n.pool != nil && len(n.conf.Rules) > 0
	}
	errs = append(errs, a.host.KeepRules(slices.Collect(maps.Values(confs))))
	if !guarded {
		return errors.Join(errs...)
	}
	lost, all, err := a.host.LostGroups(containers)
	errs = append(errs, err)
	for _, s := range lost {
		a.guard.pulse.Beat() // each may wait for a plugin
		r := records[s.Host]
		unlock := a.records.lock(r.key)
		if a.records.get(r.key) == r { // else it was removed
			a.log.Warn("a container's rules are missing: restoring them", "container", r.ContainerID, "network", r.Network.Name)
			errs = append(errs, a.host.RestoreGroup(s))
		}
		unlock()
	}
	if err == nil && all {
		dropGuarded(networks)
	}
	return errors.Join(errs...)
}

// dropGuarded removes pooled namespaces whose rules are missing.
func dropGuarded(networks []*network) {
	for _, n := range networks {
		if n.pool == nil || len(n.conf.Rules) == 0 {
			continue
		}
		for range n.pool.Stats().Ready + 1 { // + 1: one may be in preparation
			n.pool.Shed()
		}
	}
}
