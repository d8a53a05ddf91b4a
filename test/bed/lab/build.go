package lab

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

// step is one step of the construction. It registers everything that it creates with
// builder.undo at once, so that it may fail anywhere.
type step struct {
	name string
	do   func() error
}

// builder builds a lab. Each step keeps what exists already.
type builder struct {
	*Lab
	opts  Options
	rules ruleset
	nodes map[string]*netlink.Handle // routing sockets in the nodes
	undos []func() error             // undo functions of the steps so far, oldest first
}

// up is Up with fault injection: tests may return an error before a step.
func up(opts Options, fault func(step string) error) (l *Lab, err error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("build the lab: network namespaces need root; try sudo")
	}
	rules, err := readRules(opts.Rules, opts.Containers, opts.IPv6)
	if err != nil {
		return nil, err
	}
	b := &builder{
		Lab:   &Lab{prefix: withDefault(opts.Prefix, DefaultPrefix)},
		opts:  opts,
		rules: rules,
		nodes: make(map[string]*netlink.Handle),
	}
	defer func() {
		if err != nil {
			err = errors.Join(append([]error{err}, b.takeBack()...)...)
		}
		b.closeHandles()
	}()
	for _, s := range b.plan() {
		if err := fault(s.name); err != nil {
			return nil, fmt.Errorf("build the lab: %s: %w", s.name, err)
		}
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("build the lab: %s: %w", s.name, err)
		}
	}
	return b.Lab, nil
}

// validate refuses invalid options.
func (o Options) validate() error {
	if o.Containers < 0 || o.Containers > MaxContainers {
		return fmt.Errorf("build the lab: %d containers: want 0 to %d", o.Containers, MaxContainers)
	}
	if !slices.Contains([]string{"", OverlayFlannel, OverlayDocker}, o.Overlay) {
		return fmt.Errorf("build the lab: overlay %q: want %s or %s", o.Overlay, OverlayFlannel, OverlayDocker)
	}
	if o.Uplink != "" && !slices.Contains(UplinkKinds(), o.Uplink) {
		return fmt.Errorf("build the lab: uplink %q: want %s", o.Uplink, strings.Join(UplinkKinds(), ", "))
	}
	if o.Netkit < 0 || o.Netkit > o.Containers {
		return fmt.Errorf("build the lab: %d containers with netkit: want 0 to %d", o.Netkit, o.Containers)
	}
	return nil
}

// plan lists the steps. Steps that cannot be undone come last; wrong rules are
// refused before them.
func (b *builder) plan() []step {
	steps := []step{
		{"make edge", func() error { return b.makeNode(Edge) }},
		{"make device", func() error { return b.makeNode(Device) }},
		{"check rules", func() error { return b.inDevice(b.rules.check) }},
		{"set sysctls", func() error { return b.inDevice(b.setSysctls) }},
		{"make uplink", b.makeUplink},
		{"make bridge", b.makeBridge},
	}
	for n := 1; n <= b.opts.Containers; n++ {
		steps = append(steps,
			step{"make " + Container(n), func() error { return b.makeNode(Container(n)) }},
			step{"plug " + Container(n), func() error { return b.plug(n) }})
	}
	if b.opts.Overlay != "" {
		steps = append(steps, step{"make overlay", b.makeOverlay})
	}
	if b.opts.Uplink != "" {
		steps = append(steps, step{"make second uplink", b.makeSecond})
	}
	if b.opts.NoOffload {
		steps = append(steps, step{"switch offloads off", b.stopOffloads})
	}
	return append(steps,
		step{"wait for carrier", b.waitForCarrier},
		step{"load rules", func() error { return b.inDevice(b.rules.load) }},
		step{"remove surplus containers", b.removeSurplus})
}

// undo registers the function that undoes the last action.
func (b *builder) undo(fn func() error) {
	b.undos = append(b.undos, fn)
}

// takeBack undoes the steps, newest first.
func (b *builder) takeBack() []error {
	var errs []error
	for _, undo := range slices.Backward(b.undos) {
		if err := undo(); err != nil {
			errs = append(errs, fmt.Errorf("undo: %w", err))
		}
	}
	return errs
}

// closeHandles closes the sockets in the nodes.
func (b *builder) closeHandles() {
	for _, h := range b.nodes {
		h.Close()
	}
}

// inDevice calls fn in device.
func (b *builder) inDevice(fn func() error) error {
	return netns.Do(b.Node(Device), fn)
}
