package startup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// recover brings the records and the kernel together after another process
// ended here, in whatever moment: what has no record goes, what has lost its
// device is released, and a record that makes no sense is made anew.
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
		a.own(r.Host, Owner{Netns: r.Netns, ContainerID: r.ContainerID})
	}
	marked, err := a.findMarked(len(corrupt) > 0)
	if err != nil {
		return err
	}
	for _, r := range corrupt {
		if err := a.rebuild(r, devices, marked); err != nil {
			a.log.Warn("a corrupt record was put aside", "record", r.key, "error", err)
			continue
		}
		a.log.Warn("a corrupt record was put aside and made anew", "record", r.key)
	}
	if a.opts.Wait {
		// Nobody but an agent has what is in no record: there may be one with
		// another directory.
	} else if err := a.removeUnowned(devices); err != nil {
		return err
	}
	for mark, in := range marked {
		if a.isOwned(mark) {
			continue
		}
		a.log.Info("removing a device that was left", "dev", in.link.Attrs().Name, "netns", in.netns)
		if err := in.remove(); err != nil {
			return err
		}
	}
	if err := a.recoverNetworks(); err != nil {
		return err
	}
	// What cannot be taken away now is tried again: it is no reason to let those
	// wait that come.
	if err := a.releaseGone(withoutPlugin); err != nil {
		a.log.Error("release attachments whose container is gone", "error", err)
	}
	if err := a.keepRules(); err != nil {
		a.log.Error("making rules again that are gone", "error", err)
	}
	return nil
}

// withoutPlugin selects attachments that are released without a call of another
// plugin.
func withoutPlugin(r *Record) bool { return r.Network.IPAM.Type == cni.OwnIPAM }

// catchUp does what DEL was asked for while no agent answered, of attachments
// that are selected.
func (a *Agent) catchUp(selected func(*Record) bool) error {
	keys, err := a.store.deleted()
	if err != nil {
		return err
	}
	var errs []error
	hung := make(map[string]bool) // networks whose plugin hung: the next call would, too
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

// recoverNetworks takes away what devices that are gone left on the host, and
// remembers the networks that have containers.
func (a *Agent) recoverNetworks() error {
	networks, err := a.store.getNetworks()
	if err != nil {
		return err
	}
	for _, c := range networks {
		if a.claims[c.Name] == nil && a.hasContainers(c.Name) {
			a.claims[c.Name] = c // of several the latest, which is the first
		}
		if err := a.host.Sweep(c); err != nil {
			a.log.Warn("looking for what containers left", "network", c.Name, "error", err)
		}
	}
	return nil
}

// ownDevices are the host's devices with names that this package gives.
func (a *Agent) ownDevices() (map[string]netlink.Link, error) {
	links, err := netlink.LinkList()
	for range 10 {
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		links, err = netlink.LinkList()
	}
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

// removeUnowned takes away what no record tells of.
func (a *Agent) removeUnowned(devices map[string]netlink.Link) error {
	owned, named := make(map[string]bool), make(map[string]bool)
	for _, r := range a.records {
		owned[r.Host], named[a.pooledName(r.Pooled)] = true, true
	}
	for name := range devices {
		if owned[name] {
			continue
		}
		a.log.Info("removing a device that was left", "dev", name)
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
		a.log.Info("removing a namespace that was left", "netns", name)
		// A container may have it, of which nobody knows.
		if err := removeInside(name); err != nil {
			return err
		}
		if err := netns.Delete(name); err != nil && !errors.Is(err, netns.ErrNotExist) {
			return err
		}
	}
	return nil
}

// isOwned tells whether a record is of the device with a mark.
func (a *Agent) isOwned(mark string) bool {
	for _, r := range a.records {
		if mark == r.mark() {
			return true
		}
	}
	return a.opts.Wait && strings.HasPrefix(mark, pooledMark) // perhaps an agent has it that has another directory
}

// pooledName is the name of a pooled namespace that scon-oci gives to a runtime.
// The agents of a machine share /run/netns; each has a namespace of its own.
func (a *Agent) pooledName(number string) string {
	return fmt.Sprintf("cni-scon-%d-%s", a.home, number)
}

// findMarked looks for devices without an end on the host, if any network may
// have some, or nobody knows.
func (a *Agent) findMarked(look bool) (map[string]inside, error) {
	networks, err := a.store.getNetworks()
	if err != nil {
		return nil, err
	}
	for _, c := range networks {
		look = look || !devices.HasHost(c.Kind)
	}
	if !look {
		return nil, nil
	}
	return a.marked(), nil
}

// rebuild makes a record anew from what the kernel has: its addresses are in
// the container's device.
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
		return fmt.Errorf("look into the container: %w", err)
	}
	return a.keep(r)
}

// findInside finds the other end of an attachment's device on the host.
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
		return fmt.Errorf("look into the container: %w", err)
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
	return "", fmt.Errorf("no name or process leads to the namespace of %s", l.Attrs().Name)
}

// Reconcile releases attachments whose container has gone without a DEL: the
// device, or the runtime's name of the namespace, is no longer there. One that
// is made meanwhile is not looked at, for its device may be younger than the
// list of devices.
func (a *Agent) Reconcile() error {
	return a.releaseGone(func(*Record) bool { return true })
}

// releaseGone is Reconcile for the attachments that are selected.
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

// isDeserted tells whether the processes have ended by which a namespace was
// named. One that has a name that the agent does not see may not have any yet.
func (a *Agent) isDeserted(r *Record) bool {
	if !strings.HasPrefix(r.Netns, "/proc/") || r.Number == 0 {
		return false
	}
	deserted, err := a.census.isDeserted(r.Number)
	return err == nil && deserted
}

// sees tells whether the agent's own mounts have a namespace at a path, or only
// those of the process that asked.
func sees(path string, inode uint64) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	got, err := inodeOf(f)
	return err == nil && got == inode
}
