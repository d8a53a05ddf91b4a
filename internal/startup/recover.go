package startup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// recover reconciles the records with the kernel after another process ended here at
// any point: devices without a record are removed, records without a device are
// released, corrupt records are rebuilt.
func (a *Agent) recover() error {
	whole, corrupt, err := a.store.all()
	if err != nil {
		return err
	}
	devices, err := a.ownDevices()
	if err != nil {
		return err
	}
	for _, r := range whole {
		a.records[r.key] = r
		a.owners.set(r.Host, Owner{Netns: r.Netns, ContainerID: r.ContainerID})
	}
	marked, err := a.findMarked(len(corrupt) > 0)
	if err != nil {
		return err
	}
	for _, r := range corrupt {
		if err := a.rebuild(r, devices, marked); err != nil {
			a.log.Warn("corrupt record moved aside", "record", r.key, "error", err)
			continue
		}
		a.log.Warn("corrupt record moved aside and rebuilt", "record", r.key)
	}
	if a.opts.Wait {
		// Devices without a record may belong to an agent with another state
		// directory: only an agent removes them.
	} else if err := a.removeUnowned(devices); err != nil {
		return err
	}
	for mark, in := range marked {
		if a.isOwned(mark) {
			continue
		}
		a.log.Info("remove a leftover device", "dev", in.link.Attrs().Name, "netns", in.netns)
		if err := in.remove(); err != nil {
			return err
		}
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

// withoutPlugin selects attachments whose release calls no other IPAM plugin.
func withoutPlugin(r *Record) bool { return r.Network.IPAM.Type == cni.OwnIPAM }

// catchUp executes the DELs recorded while no agent ran, for the selected
// attachments.
func (a *Agent) catchUp(selected func(*Record) bool) error {
	keys, err := a.store.deleted()
	if err != nil {
		return err
	}
	var errs []error
	hung := make(map[string]bool) // networks whose plugin hung: the next call would hang, too
	for _, key := range keys {
		unlock := a.busy.lock(key)
		if r := a.record(key); r == nil {
			errs = append(errs, a.store.forget(key))
		} else if selected(r) && !hung[r.Network.Name] {
			err := a.detach(r)
			hung[r.Network.Name] = errors.Is(err, context.DeadlineExceeded)
			if err == nil {
				err = a.store.forget(key)
			}
			errs = append(errs, err)
		}
		unlock()
	}
	return errors.Join(errs...)
}

// recoverNetworks removes the host state that missing devices left, and claims the
// networks that have containers.
func (a *Agent) recoverNetworks() error {
	networks, err := a.store.getNetworks()
	if err != nil {
		return err
	}
	for _, c := range networks {
		if a.hasContainers(c.Name) {
			a.claims.recover(c)
		}
		if err := a.host.Sweep(c); err != nil {
			a.log.Warn("remove leftovers of containers", "network", c.Name, "error", err)
		}
	}
	return nil
}

// ownDevices returns the host's devices whose names this package assigned.
func (a *Agent) ownDevices() (map[string]netlink.Link, error) {
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
func (a *Agent) removeUnowned(devices map[string]netlink.Link) error {
	owned, named := make(map[string]bool), make(map[string]bool)
	for _, r := range a.records {
		owned[r.Host], named[a.pooledName(r.Pooled)] = true, true
	}
	for name := range devices {
		if owned[name] {
			continue
		}
		a.log.Info("remove a leftover device", "dev", name)
		if err := a.host.Remove(&cni.Network{Rules: make([]cni.Rule, 1)}, name); err != nil {
			return err
		}
	}
	paths, err := filepath.Glob(netns.Path(a.pooledName("*")))
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if named[name] {
			continue
		}
		a.log.Info("remove a leftover namespace", "netns", name)
		// A container without a record may have it.
		if err := removeInside(name); err != nil {
			return err
		}
		if err := netns.Delete(name); err != nil && !errors.Is(err, netns.ErrNotExist) {
			return err
		}
	}
	return nil
}

// isOwned reports whether a record belongs to the device with a mark.
func (a *Agent) isOwned(mark string) bool {
	for _, r := range a.records {
		if mark == r.mark() {
			return true
		}
	}
	return a.opts.Wait && strings.HasPrefix(mark, pooledMark) // an agent with another directory may own it
}

// pooledName returns the name of a pooled namespace that scon-oci gives to a runtime.
// It contains the agent's namespace, since the agents of a machine share /run/netns.
func (a *Agent) pooledName(number string) string {
	return fmt.Sprintf("cni-scon-%d-%s", a.home, number)
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
	return a.marked(), nil
}

// rebuild rebuilds a record from the kernel's state: the addresses are those of the
// container's device.
func (a *Agent) rebuild(r *Record, devices map[string]netlink.Link, marked map[string]inside) error {
	if err := a.store.remove(r); err != nil {
		return err
	}
	r.Network = cni.Network{Name: unknownNetwork, IPAM: cni.IPAM{Type: cni.OwnIPAM}}
	in, own := marked[r.mark()]
	if own {
		r.Netns, r.Network.Kind = in.netns, in.link.Type()
	} else if err := a.findInside(r, devices, &in); err != nil {
		return err
	}
	r.IfName = in.link.Attrs().Name
	err := netns.Do(in.netns, func() (err error) {
		r.Leases, err = leases(in.link)
		return err
	})
	if err != nil {
		return fmt.Errorf("inspect the container: %w", err)
	}
	return a.keep(r)
}

// findInside finds the container's end of an attachment's device.
func (a *Agent) findInside(r *Record, devices map[string]netlink.Link, in *inside) (err error) {
	r.Host = inPlacePrefix + r.key
	if r.Pooled != "" {
		r.Host = pooledPrefix + r.Pooled
	}
	l := devices[r.Host]
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

// Reconcile releases attachments whose container ended without a DEL: the device, or
// the runtime's name of the namespace, is gone. It skips attachments made meanwhile,
// whose device may be newer than the list of devices.
func (a *Agent) Reconcile() error {
	return a.releaseGone(func(*Record) bool { return true })
}

// releaseGone is Reconcile for the selected attachments.
func (a *Agent) releaseGone(selected func(*Record) bool) error {
	missed := a.catchUp(selected)
	all := a.attachments()
	devices, err := a.ownDevices()
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

// sees reports whether the agent's own mounts have the namespace at a path, not only
// those of the requesting process.
func sees(path string, inode uint64) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	got, err := inodeOf(f)
	return err == nil && got == inode
}
