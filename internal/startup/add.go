package startup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
)

// An ADD, in the order of add:
//
//	open       the container's namespace
//	begin      wait for admission
//	hand over  replace the namespace by a pooled one, if nothing prevents it
//	in place   else lease addresses, and make the device in it
//	keep       write the record: the attachment exists
//
// A phase notes in undo how to undo it; an error of a later one has all of that done.
type addition struct {
	*Agent
	pid  int // of the runtime; 0 is this process
	conf *cni.Conf
	ns   *os.File // the container's namespace
	n    *network
	r    *Record
	undo undoList
}

// add makes a container's device, for the process pid (0 is this one); bundle is "" for a
// container without an OCI bundle.
func (a *Agent) add(pid int, at cni.Attachment, c *cni.Conf, bundle string) (_ *types100.Result, err error) {
	r := newRecord(at, c)
	r.Bundle = bundle
	defer a.records.lock(r.key)()
	if err := a.removeHalf(r); err != nil {
		return nil, err
	}
	ns, err := netns.Open(seenBy(pid, at.Netns))
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, err.Error(), "")
	}
	defer ns.Close()
	d := &addition{Agent: a, pid: pid, conf: c, ns: ns, r: r}
	if err := d.identify(); err != nil {
		return nil, err
	}
	defer a.stages.begin(StageAddCNI, at.ContainerID)()
	defer d.undo.after(&err)
	d.n = a.networks.get(c)
	e, why := d.handOver()
	if e == nil {
		a.tally.countInPlace(why)
		if err := d.makeInPlace(); err != nil {
			return nil, err
		}
	}
	if err := a.records.keep(r); err != nil {
		return nil, err
	}
	step("add-kept")
	if e != nil {
		e.ns.Close()
		a.tally.countHanded()
	}
	return r.Result, nil
}

// removeHalf removes what an ADD that was interrupted has left, and refuses a second ADD.
func (a *Agent) removeHalf(r *Record) error {
	switch half := a.records.get(r.key); {
	case half != nil && half.unfinished():
		return a.detach(half)
	case half != nil:
		return fmt.Errorf("container %s already has device %s in network %q", r.ContainerID, r.IfName, r.Network.Name)
	case a.opts.Wait: // an agent has removed all at its start
		return a.host.Remove(&r.Network, inPlacePrefix+r.key)
	}
	return nil
}

// identify notes which namespace is the container's. A DEL that was recorded without the agent
// does not apply to the new attachment.
func (d *addition) identify() (err error) {
	if d.r.Number, err = inodeOf(d.ns); err != nil {
		return err
	}
	if d.r.Number == d.home.inode {
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("namespace %s is the host's: want a container's namespace", d.r.Netns), "")
	}
	// A path in /proc ends with its process, and its number may be reused.
	if !strings.HasPrefix(d.r.Netns, "/proc/") && sees(d.r.Netns, d.r.Number) {
		d.r.Inode = d.r.Number
	}
	return d.store.forget(d.r.key)
}

// handOver replaces the container's namespace by a pooled one, or returns the reason why
// the device must be made in place.
func (d *addition) handOver() (e *entry, why string) {
	if why := d.unswappable(); why != "" {
		return nil, why
	}
	if e = d.take(d.n); e == nil {
		return nil, poolEmpty
	}
	step("add-taken")
	if err := netns.Replace(d.r.Netns, e.ns); err != nil {
		why = "the namespace cannot be replaced"
		d.log.Warn("hand over a pooled namespace", "container", d.r.ContainerID, "error", errors.Join(errors.New(why), err, d.drop(d.n, e)))
		return nil, why
	}
	step("add-replaced")
	d.undo.by(func() error { return d.drop(d.n, e) })
	d.give(e, d.r, d.conf)
	return e, ""
}

// poolEmpty is why a container of a network with a pool gets no pooled namespace.
const poolEmpty = "the pool is empty"

// unswappable returns the reason why the container's namespace cannot be replaced, or "".
func (d *addition) unswappable() (why string) {
	switch {
	case d.n.pool == nil:
		why = "there is no pool"
	case d.conf.HandOver == cni.HandOverNone:
		why = "handOver is none"
	case d.conf.Bandwidth != nil:
		why = "it has a bandwidth of its own"
	case d.r.IfName != pooledName:
		why = "its device has another name than " + pooledName
	case d.r.Inode == 0:
		why = "the agent does not see its namespace, or a process holds it"
	case !d.beneath:
		why = "the kernel has no MOVE_MOUNT_BENEATH (6.5)"
	case !sameMounts(d.pid):
		why = "the runtime has other mounts than the agent"
	case !d.home.sharesOwner(d.ns):
		why = "its namespace belongs to another user namespace"
	case !isEmpty(d.ns):
		why = "its namespace has devices already"
	case !d.plain.has(d.ns):
		why = "its namespace has sysctls of its own"
	case !d.census.isFree(d.r.Number, now()):
		why = "a process is in its namespace already" // and would stay in it
	}
	return why
}

// makeInPlace makes the device in the container's own namespace.
func (d *addition) makeInPlace() error {
	if devices.HasHost(d.conf.Kind) {
		d.r.Host = inPlacePrefix + d.r.key
	}
	if err := d.lease(); err != nil {
		return err
	}
	step("add-leased")
	owner := Owner{Netns: d.r.Netns, ContainerID: d.r.ContainerID}
	if d.r.Inode == 0 && !strings.HasPrefix(owner.Netns, "/proc/") {
		owner.Netns = d.ns.Name()
	}
	end := d.stages.begin(StageAttachIf, d.r.ContainerID)
	s := devices.Spec{Conf: d.conf, Netns: d.ns, Name: d.r.IfName, Host: d.r.Host, Leases: d.r.Leases}
	made, err := d.make(d.n, s, owner, d.r.mark())
	end()
	if err != nil {
		return err
	}
	d.undo.by(func() error {
		defer d.owners.remove(d.r.Host)
		return d.removeDevice(d.r)
	})
	step("add-made")
	d.r.Index, d.r.Result = made.Index, resultOf(d.conf, d.r, made)
	return nil
}

// undoList is how to undo what an operation has done so far.
type undoList []func() error

func (u *undoList) by(fn func() error) { *u = append(*u, fn) }

func (u *undoList) with(fn func()) {
	u.by(func() error {
		fn()
		return nil
	})
}

// after undoes all of it, the last first, if the operation ended with an error or a panic, which
// ends a request and not the service. It is deferred itself.
func (u *undoList) after(err *error) {
	failed := recover()
	if *err == nil && failed == nil {
		return
	}
	for _, fn := range slices.Backward(*u) {
		*err = errors.Join(*err, fn())
	}
	if failed != nil {
		panic(failed)
	}
}

// inodeOf returns the inode of a namespace, which identifies it.
func inodeOf(ns *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		return 0, fmt.Errorf("stat namespace: %w", err)
	}
	return st.Ino, nil
}

// sees reports whether the agent's own mounts have the namespace at a path, not only
// those of the requesting process.
func sees(path string, inode uint64) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Ino == inode
}

// sameMounts reports whether a process shares the agent's mount namespace.
func sameMounts(pid int) bool {
	if pid <= 0 {
		return true
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	theirs, gone := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	return err == nil && gone == nil && ours == theirs
}
