package startup

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// lull is the minimum time between two checks of the rules.
const lull = time.Second

// RulesChanged makes the agent check its rules: another program that loads rules may
// have removed them.
func (a *Agent) RulesChanged() {
	select {
	case a.rules <- struct{}{}:
	default: // a check is pending
	}
}

// keepRules restores missing rules of networks and of their containers.
func (a *Agent) keepRules() error {
	confs := a.claims.all()
	a.mu.Lock()
	networks := slices.Collect(maps.Values(a.networks))
	var containers []devices.Spec
	records := make(map[string]*Record)
	for _, r := range a.records {
		if len(r.Network.Rules) > 0 {
			containers = append(containers, devices.Spec{Conf: &cni.Conf{Network: r.Network}, Host: r.Host, Leases: r.Leases})
			records[r.Host] = r
		}
	}
	a.mu.Unlock()
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
		a.pulse.Beat() // each may wait for a plugin
		r := records[s.Host]
		unlock := a.busy.lock(r.key)
		if a.record(r.key) == r { // else it was removed
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
