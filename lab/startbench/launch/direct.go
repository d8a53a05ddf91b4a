package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/startbench"
)

// container is a container of the direct launcher.
type container struct {
	name    string   // of the container and its namespace
	dir     string   // OCI bundle
	netns   string   // the namespace's path, "" if the runtime chooses it
	network *network // nil without one
	address
	mac   net.HardwareAddr // of eth0, for a microVM
	added bool             // ADD was called
	begun bool             // the runtime was
}

// containerRuntime starts a container in a namespace that has its network.
type containerRuntime interface {
	// prepare writes the files that create needs.
	prepare(c *container) error
	// create is the stage Cgroup, attach the stage AttachIf if tap is true, start the
	// stage StartVM.
	create(ctx context.Context, c *container) error
	attaches() bool
	attach(ctx context.Context, c *container) error
	start(ctx context.Context, c *container) error
	// remove removes the container, if it exists.
	remove(ctx context.Context, c *container) error
	close() error
	// address returns the address of a container whose wrapper attached the network.
	address(c *container) (netip.Addr, error)
}

// direct is the launcher without a container engine.
type direct struct {
	order      startbench.Order
	networks   []*network
	runtime    containerRuntime
	containers []*container
}

func newDirect(o startbench.Order, n []*network, r containerRuntime) *direct {
	return &direct{order: o, networks: n, runtime: r}
}

func (d *direct) prepare(n int) error {
	for range n {
		name := fmt.Sprintf("%s-c%05d", d.order.Prefix, len(d.containers))
		c := &container{name: name, dir: filepath.Join(d.order.Dir, "bundles", name), netns: netns.Path(name)}
		if d.order.PathGiven {
			c.netns = ""
		}
		if n := len(d.networks); n > 0 {
			c.network = d.networks[len(d.containers)%n]
		}
		d.containers = append(d.containers, c)
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			return err
		}
		if err := d.runtime.prepare(c); err != nil {
			return fmt.Errorf("prepare %s: %w", name, err)
		}
	}
	return nil
}

func (d *direct) start(ctx context.Context, i int, t *timeline) (err error) {
	c := d.containers[i]
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", c.name, err)
		}
	}()
	if c.netns != "" {
		if err := t.stage(startbench.StageNetns, func() error { return netns.Create(c.name) }); err != nil {
			return err
		}
	}
	if c.network != nil && c.netns != "" {
		c.added = true
		err := t.stage(startbench.StageAdd, func() (err error) {
			c.address, err = c.network.add(ctx, c.name)
			return err
		})
		if err != nil {
			return err
		}
	}
	c.begun = true
	if err := t.stage(startbench.StageCgroup, func() error { return d.runtime.create(ctx, c) }); err != nil {
		return err
	}
	if c.netns == "" && d.order.Ping {
		if c.addr, err = d.runtime.address(c); err != nil {
			return err
		}
	}
	if d.runtime.attaches() {
		if err := t.stage(startbench.StageAttach, func() error { return d.runtime.attach(ctx, c) }); err != nil {
			return err
		}
	}
	if err := t.stage(startbench.StageStart, func() error { return d.runtime.start(ctx, c) }); err != nil {
		return err
	}
	if !d.order.Ping {
		return nil
	}
	return t.stage(startbench.StagePing, func() error { return c.network.pings.wait(ctx, c.addr) })
}

func (d *direct) remove(ctx context.Context, i int) error {
	if i >= len(d.containers) {
		return nil // prepare failed before this container
	}
	c := d.containers[i]
	var errs []error
	if c.begun {
		errs = append(errs, d.runtime.remove(ctx, c))
	}
	if c.added {
		errs = append(errs, c.network.del(ctx, c.name))
	}
	if c.netns != "" {
		errs = append(errs, deleteNetns(c.name))
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

func (d *direct) close() error { return d.runtime.close() }
