package startup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// recovery is what the kernel has when an agent starts.
type recovery struct {
	*Agent
	devices map[string]netlink.Link // the host's own devices
	marked  map[string]inside       // devices without an end on the host, by mark
}

// recover reconciles the records with the kernel after another process ended here at
// any point: devices without a record are removed, records without a device are
// released, corrupt records are rebuilt.
func (a *Agent) recover() error {
	whole, corrupt, err := a.store.all()
	if err != nil {
		return err
	}
	v := recovery{Agent: a}
	if v.devices, err = ownDevices(); err != nil {
		return err
	}
	for _, r := range whole {
		a.records.add(r)
		a.owners.set(r.Host, Owner{Netns: r.Netns, ContainerID: r.ContainerID})
	}
	if v.marked, err = a.findMarked(len(corrupt) > 0); err != nil {
		return err
	}
	for _, r := range corrupt {
		if err := v.rebuild(r); err != nil {
			a.log.Warn("corrupt record moved aside", "record", r.key, "error", err)
			continue
		}
		a.log.Warn("corrupt record moved aside and rebuilt", "record", r.key)
	}
	if err := v.removeUnowned(); err != nil {
		return err
	}
	if err := a.recoverNetworks(); err != nil {
		return err
	}
	// Attachments that cannot be removed now are removed later: new containers do
	// not wait for them.
	if err := a.releaseGone(withoutPlugin); err != nil {
		a.log.Error("release attachments whose container is gone", "error", err)
	}
	if err := a.keepRules(); err != nil {
		a.log.Error("restore missing rules", "error", err)
	}
	return nil
}

// Selections of attachments: all, and those whose release calls no other IPAM plugin.
func every(*Record) bool { return true }

func withoutPlugin(r *Record) bool { return r.Network.IPAM.Type == cni.OwnIPAM }

// catchUp executes the DELs recorded while no agent ran, for the selected
// attachments.
func (a *Agent) catchUp(selected func(*Record) bool) error {
	all := a.records.all() // a DEL is not of an attachment that is made from now on
	keys, err := a.store.deleted()
	if err != nil {
		return err
	}
	err = a.detachAll(all, func(r *Record) bool { return slices.Contains(keys, r.key) && selected(r) })
	for _, key := range keys {
		unlock := a.records.lock(key)
		if a.records.get(key) == nil {
			err = errors.Join(err, a.store.forget(key))
		}
		unlock()
	}
	return err
}

// recoverNetworks removes the host state that missing devices left, and claims the
// networks that have containers.
func (a *Agent) recoverNetworks() error {
	networks, err := a.store.getNetworks()
	if err != nil {
		return err
	}
	for _, c := range networks {
		if a.records.inUse(c.Name) {
			a.networks.recover(c)
		}
		if err := a.host.Sweep(c); err != nil {
			a.log.Warn("remove leftovers of containers", "network", c.Name, "error", err)
		}
	}
	return nil
}

// ownDevices returns the host's devices whose names this package assigned.
func ownDevices() (map[string]netlink.Link, error) {
	links, err := netdev.List()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	own := make(map[string]netlink.Link)
	for _, l := range links {
		name := l.Attrs().Name
		if len(name) == len(inPlacePrefix)+12 && (strings.HasPrefix(name, inPlacePrefix) || strings.HasPrefix(name, pooledPrefix)) {
			own[name] = l
		}
	}
	return own, nil
}

// removeUnowned removes devices and namespaces without a record.
func (v recovery) removeUnowned() error {
	owned := make(map[string]bool) // names and marks of devices, names of namespaces
	for _, r := range v.records.all() {
		owned[r.Host], owned[r.mark()], owned[v.home.pooledName(r.Pooled)] = true, true, true
	}
	// Those on the host may belong to an agent with another state directory: only an agent
	// removes them.
	if !v.opts.Wait {
		if err := v.removeFromHost(owned); err != nil {
			return err
		}
	}
	step("recover-marked")
	for mark, in := range v.marked {
		if owned[mark] || v.opts.Wait && strings.HasPrefix(mark, pooledMark) {
			continue
		}
		// Anyone in a namespace of his own can make such a mark there.
		dev := in.link.Attrs().Name
		v.log.Info("remove a leftover device", "dev", dev, "netns", in.netns)
		if err := ignoreGone(in.remove()); err != nil {
			v.log.Warn("remove a leftover device", "dev", dev, "netns", in.netns, "error", err)
		}
	}
	return nil
}

// removeFromHost removes the host's devices and named namespaces without a record.
func (v recovery) removeFromHost(owned map[string]bool) error {
	// A pooled namespace ends with its agent, and leaves its security group.
	names, err := v.host.Groups()
	if err != nil { // the kernel has no nftables
		v.log.Warn("list security groups", "error", err)
	}
	names = slices.AppendSeq(names, maps.Keys(v.devices))
	for _, name := range names {
		if owned[name] {
			continue
		}
		v.log.Info("remove a leftover device", "dev", name)
		if err := v.host.Remove(&cni.Network{Rules: make([]cni.Rule, 1)}, name); err != nil {
			return err
		}
	}
	paths, err := filepath.Glob(netns.Path(v.home.pooledName("*")))
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if owned[name] {
			continue
		}
		v.log.Info("remove a leftover namespace", "netns", name)
		// A container without a record may have it.
		if err := removeInside(0, name); err != nil {
			return err
		}
		if err := netns.Delete(name); err != nil && !errors.Is(err, netns.ErrNotExist) {
			return err
		}
	}
	return nil
}

// findMarked searches for devices without an end on the host, if search is set or a
// network may have some.
func (a *Agent) findMarked(search bool) (map[string]inside, error) {
	networks, err := a.store.getNetworks()
	if err != nil {
		return nil, err
	}
	for _, c := range networks {
		search = search || !devices.HasHost(c.Kind)
	}
	if !search {
		return nil, nil
	}
	return a.home.marked(), nil
}

// rebuild rebuilds a record from the kernel's state: the addresses are those of the
// container's device.
func (v recovery) rebuild(r *Record) error {
	if err := v.store.remove(r); err != nil {
		return err
	}
	r.Network = cni.Network{Name: unknownNetwork, IPAM: cni.IPAM{Type: cni.OwnIPAM}}
	in, own := v.marked[r.mark()]
	if own {
		r.Netns, r.Network.Kind = in.netns, in.link.Type()
	} else if err := v.findInside(r, &in); err != nil {
		return err
	}
	r.IfName, r.Index = in.link.Attrs().Name, in.link.Attrs().Index
	err := netns.Do(in.netns, func() (err error) {
		r.Leases, err = devices.Leases(in.link)
		return err
	})
	if err != nil {
		return fmt.Errorf("inspect the container: %w", err)
	}
	return v.records.keep(r)
}

// findInside finds the container's end of an attachment's device.
func (v recovery) findInside(r *Record, in *inside) (err error) {
	r.Host = inPlacePrefix + r.key
	if r.Pooled != "" {
		r.Host = pooledPrefix + r.Pooled
	}
	l := v.devices[r.Host]
	if l == nil {
		return fmt.Errorf("device %s is gone", r.Host)
	}
	if in.netns, err = namespaceOf(l); err != nil {
		return err
	}
	err = netns.Do(in.netns, func() (err error) {
		in.link, err = netlink.LinkByIndex(l.Attrs().ParentIndex)
		return err
	})
	if err != nil {
		return fmt.Errorf("inspect the container: %w", err)
	}
	return nil
}

// namespaceOf finds the namespace of a pair's other end.
func namespaceOf(l netlink.Link) (string, error) {
	for _, p := range namespaces() {
		f, err := netns.Open(p)
		if err != nil {
			continue
		}
		id, err := netlink.GetNetNsIdByFd(int(f.Fd()))
		f.Close()
		if err == nil && id == l.Attrs().NetNsID {
			return p, nil
		}
	}
	return "", fmt.Errorf("the namespace of %s has no name and no process", l.Attrs().Name)
}

// releaseGone releases the selected attachments whose container ended without a DEL: the
// device, or the runtime's name of the namespace, is gone. It skips attachments made
// meanwhile, whose device may be newer than the list of devices.
func (a *Agent) releaseGone(selected func(*Record) bool) error {
	missed := errors.Join(a.catchUp(selected), a.store.forgetPending())
	all := a.records.all()
	devices, err := ownDevices()
	if err != nil {
		return errors.Join(missed, err)
	}
	step("reconcile-listed")
	return errors.Join(missed, a.detachAll(all, func(r *Record) bool {
		if !selected(r) {
			return false
		}
		if r.unfinished() || r.Host != "" && devices[r.Host] == nil {
			return true
		}
		if r.Bundle != "" {
			_, err := os.Stat(r.Bundle)
			return errors.Is(err, os.ErrNotExist)
		}
		if r.Inode == 0 {
			return r.Host == "" && a.isDeserted(r)
		}
		inode, err := netns.Inode(r.Netns)
		return errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) || err == nil && inode != r.Inode
	}))
}

// isDeserted reports whether the namespace of a process' path has no process left. A
// namespace whose name the agent cannot see may have none yet.
func (a *Agent) isDeserted(r *Record) bool {
	if !strings.HasPrefix(r.Netns, "/proc/") || r.Number == 0 {
		return false
	}
	deserted, err := a.census.isDeserted(r.Number)
	return err == nil && deserted
}
