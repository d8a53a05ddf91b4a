package express

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/startup"
)

// starter answers clients of a daemon that has an agent.
type starter struct {
	backend
	api.Starter
}

// startAgent starts what gives containers their network, if it is wanted. It
// works beside the loop, which sees its devices as it sees everybody's.
func (d *Daemon) startAgent() (err error) {
	if !d.opts.Config.Startup.Enabled {
		return nil
	}
	d.agent, err = startup.New(startup.Options{
		Config: d.opts.Config.Startup, StateDir: d.opts.StateDir, Socket: d.opts.Socket, Netns: d.opts.Netns, Logger: d.log,
		Owned: d.owned,
	})
	return err
}

// stopAgent ends it, once; attachments stay.
func (d *Daemon) stopAgent() error {
	a := d.agent
	if a == nil {
		return nil
	}
	d.agent = nil
	return a.Close()
}

// settleOwned is how long a container that the agent has attached may take to
// have processes, by which its runtime's name for it is found.
const settleOwned = 5 * time.Second

// owned hears that a container has got a device. Its identifier names it at
// once, without a look at every process while many start; what its runtime
// calls it is asked later.
func (d *Daemon) owned(host string, o startup.Owner) {
	d.owners.Go(func() {
		d.renamePort(host, func(p *hooks.Port) discover.Container { return ownedContainer(p.Container, o) })
		select {
		case <-time.After(settleOwned):
		case <-d.ctx.Done():
			return
		}
		var at discover.Port
		found := d.renamePort(host, func(p *hooks.Port) discover.Container { at = p.Port; return p.Container })
		if !found {
			return
		}
		once, cancel := context.WithCancel(d.ctx)
		cancel() // one look: a container without a name by now gets none
		if c := d.namer.Name(once, at); c.ID != "" {
			d.renamePort(host, func(*hooks.Port) discover.Container { return c })
		}
	})
}

// renamePort changes in the loop who is behind a port. It is false if there is
// none of that name.
func (d *Daemon) renamePort(host string, name func(*hooks.Port) discover.Container) (found bool) {
	_, err := inLoop(backend{d, d.ctx}, func(d *Daemon) (struct{}, error) {
		if p := d.hooks.PortNamed(host); p != nil {
			p.Container, found = name(p), true
		}
		return struct{}{}, nil
	})
	return err == nil && found
}

// ownedContainer is a container as the agent knows it.
func ownedContainer(c discover.Container, o startup.Owner) discover.Container {
	c.ID = o.ContainerID
	c.Name = cmp.Or(discover.Short(o.ContainerID), c.Name)
	c.Runtime = "cni"
	c.Netns = o.Netns
	return c
}

// nameOf is who is behind a port: the agent's own need no search.
func (d *Daemon) nameOf(ctx context.Context, at discover.Port) discover.Container {
	if c, ok := d.ownedBy(at.Name); ok {
		return c
	}
	return d.namer.Name(ctx, at)
}

// ownedBy is the container that the agent has given a device to; false if it is
// none of the agent's.
func (d *Daemon) ownedBy(host string) (c discover.Container, ok bool) {
	if d.agent == nil {
		return c, false
	}
	o, ok := d.agent.Owner(host)
	return ownedContainer(discover.Container{Name: host}, o), ok
}

// cleanAgent takes away what an agent left that died, and that no container
// has.
func cleanAgent(o Options) error {
	if !startup.WasAt(o.StateDir) {
		return nil
	}
	a, err := startup.New(startup.Options{Config: o.Config.Startup, StateDir: o.StateDir, Socket: o.Socket, Netns: o.Netns, Logger: o.Logger})
	if errors.Is(err, startup.ErrBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	return a.Close()
}
