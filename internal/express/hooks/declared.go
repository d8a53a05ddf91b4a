package hooks

import (
	"fmt"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/discover"
)

// declared is what the settings keep regular, because its policy is made
// elsewhere: devices, which are not hooked, and containers, whose ports are
// hooked and withheld from the composer. As long as a container may be one of
// them and is not identified, its port is withheld, too.
type declared struct {
	selectors  []config.Selector
	containers bool // some are of containers
	labels     bool // some are of containers by their labels
}

func newDeclared(selectors []config.Selector) declared {
	d := declared{selectors: selectors}
	for _, s := range selectors {
		d.containers = d.containers || s.Device == ""
		d.labels = d.labels || s.Label != ""
	}
	return d
}

// device returns why a device is not hooked, "" if nothing says so.
func (d declared) device(name string) string {
	for _, s := range d.selectors {
		if s.Device == name {
			return fmt.Sprintf("the settings keep it regular (regular: %s)", s)
		}
	}
	return ""
}

// container returns why a container stays regular, "" if nothing says so.
func (d declared) container(c discover.Container) string {
	for _, s := range d.selectors {
		value, labelled := c.Labels[s.Label]
		switch {
		case s.Name != "" && (s.Name == c.Name || s.Name == c.ID || s.Name == discover.Short(c.ID)),
			s.Label != "" && labelled && (s.Value == nil || *s.Value == value):
			return fmt.Sprintf("the settings keep container %s regular (regular: %s)", c.Name, s)
		}
	}
	return ""
}

// isIdentified reports whether all is known of a container that a selector may
// select it by.
func (d declared) isIdentified(c discover.Container) bool {
	if c.Unknown { // a name may come from the engine's monitor
		return !d.labels && c.Name != discover.Short(c.ID)
	}
	return c.Runtime != "" || c.PID != 0
}

// Withheld returns why connections of the port's container stay regular, "" if
// they need not.
func (p *Port) Withheld() string { return p.withheld }

// unidentified is why a port is withheld before its container is known.
const unidentified = "its container is not identified yet, and the settings keep some containers regular"

// AwaitContainers takes up whose ports these are, as the loop does with Identified, until
// no port is withheld because its container is not identified, or for limit.
func (h *Hooks) AwaitContainers(limit time.Duration) {
	end := time.After(limit)
	for h.awaitsContainers() {
		select {
		case i := <-h.naming.answers:
			h.SetContainer(i)
		case <-end:
			return
		}
	}
}

func (h *Hooks) awaitsContainers() bool {
	for _, p := range h.ports {
		if p.withheld == unidentified {
			return true
		}
	}
	return false
}

// withhold takes up whose port it is, once the container is identified: final
// is false if its runtime's name for it is not known yet.
func (h *Hooks) withhold(p *Port, final bool) {
	if !h.declared.containers {
		return
	}
	before := p.withheld
	p.withheld = h.declared.container(p.Container)
	if p.withheld == "" && !final {
		p.withheld = unidentified
	}
	if p.withheld == before {
		return
	}
	h.opts.Logger.Info("container kept regular", "dev", p.Name, "name", p.Container.Name, "reason", p.withheld)
	h.opts.PortGone(p.Index)
	h.opts.PortThere(p.Index) // a container's still
}
