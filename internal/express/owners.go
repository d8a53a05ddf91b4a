package express

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/hooks"
	"github.com/scon-project/scon/internal/state"
)

// owners are the containers whose devices the startup service has created, as it
// reports them. They need no search. Without that service there are none, and containers
// are found as all others are.
type owners struct {
	mu     sync.Mutex
	byHost map[string]owner
}

type owner struct {
	api.Owner
	// settled is set when the container may be found by its processes: by the name
	// that its runtime has for it.
	settled bool
}

// retryOwners is how long after a failure the startup service is asked again.
const retryOwners = 3 * time.Second

// settleOwned is how long a container that the startup service has attached may
// take to have processes, by which its runtime's name for it is found.
const settleOwned = 5 * time.Second

// followOwners listens to the startup service whenever there is one.
func (d *Daemon) followOwners() {
	service := api.Connect(api.Identity{Service: string(state.Startup), Name: "startup service"}, state.Startup.Socket(d.opts.StateDir))
	for {
		d.readOwners(service)
		select {
		case <-time.After(retryOwners):
		case <-d.ctx.Done():
			return
		}
	}
}

// readOwners listens until the stream ends.
func (d *Daemon) readOwners(service *api.Service) {
	stream, err := service.Stream(d.ctx, api.OwnersPath)
	if err != nil {
		return
	}
	defer stream.Close()
	lines := json.NewDecoder(stream)
	for first := true; ; first = false {
		var line []api.Owner
		if lines.Decode(&line) != nil {
			return
		}
		for _, o := range d.owners.take(line, first) {
			d.naming.Go(func() { d.nameOwned(o) })
		}
	}
}

// take remembers a line of the stream, of which the first one has all owners. It
// returns those that have got a device since.
func (w *owners) take(line []api.Owner, all bool) (news []api.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.byHost
	if all {
		w.byHost = make(map[string]owner, len(line))
	}
	for _, o := range line {
		if o.Gone {
			delete(w.byHost, o.Host)
			continue
		}
		now := known[o.Host]
		if now.Owner != o {
			now = owner{Owner: o}
			if o.Container != "" {
				news = append(news, o)
			}
		}
		w.byHost[o.Host] = now
	}
	return news
}

// settle says that a container may be found by its processes now.
func (w *owners) settle(o api.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byHost[o.Host].Owner == o {
		w.byHost[o.Host] = owner{o, true}
	}
}

func (w *owners) get(host string) (o owner, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o, ok = w.byHost[host]
	return o, ok
}

// container is the container that the startup service has given a device to;
// false if it has not, or the container may be found by its processes.
func (w *owners) container(host string) (c discover.Container, ok bool) {
	o, ok := w.get(host)
	return containerOf(o.Owner, discover.Container{Name: host}), ok && !o.settled
}

// containerOf is a container as the startup service knows it.
func containerOf(o api.Owner, c discover.Container) discover.Container {
	c.ID = o.Container
	c.Name = cmp.Or(discover.Short(o.Container), c.Name)
	c.Runtime = "cni"
	c.Netns = o.Netns
	return c
}

// nameOf finds the container behind a port.
func (d *Daemon) nameOf(ctx context.Context, at discover.Port) discover.Container {
	o, owned := d.owners.get(at.Name)
	if !owned {
		return d.namer.Name(ctx, at)
	}
	if o.settled {
		once, cancel := context.WithCancel(ctx)
		cancel() // one scan: a container without a name by now gets none
		if c := d.namer.Name(once, at); c.ID != "" {
			return c
		}
	}
	return containerOf(o.Owner, discover.Container{Name: at.Name})
}

// nameOwned gives a container that has got a device its name: the identifier at
// once, without a scan of all processes while many containers start; later what
// its runtime calls it. Before it had a process, its namespace may have been out
// of reach: so its device is searched again as well.
func (d *Daemon) nameOwned(o api.Owner) {
	d.atPort(o.Host, func(p *hooks.Port) {
		if p.Container.ID != o.Container {
			p.Container = containerOf(o, p.Container)
		}
	})
	select {
	case <-time.After(settleOwned):
	case <-d.ctx.Done():
		return
	}
	d.owners.settle(o)
	d.atPort(o.Host, d.hooks.Identify)
}

// atPort does something in the loop with the port of a name, if there is one.
func (d *Daemon) atPort(host string, do func(*hooks.Port)) {
	_, _ = inLoop(backend{d: d, ctx: d.ctx}, func(d *Daemon) (struct{}, error) {
		if p := d.hooks.PortNamed(host); p != nil {
			do(p)
		}
		return struct{}{}, nil
	})
}

// renamed names the ports of a container anew, or with "" all that an engine has named: its
// name has changed, or may have.
func (d *Daemon) renamed(id string) {
	_, _ = inLoop(backend{d: d, ctx: d.ctx}, func(d *Daemon) (struct{}, error) {
		for _, p := range d.hooks.Ports() {
			if p.Container.ID != "" && (id == "" || p.Container.ID == id) {
				d.hooks.Identify(p)
			}
		}
		return struct{}{}, nil
	})
}
