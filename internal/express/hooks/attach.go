package hooks

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/scon-project/scon/internal/express/datapath"
)

// attacher attaches programs to devices.
type attacher struct {
	dp   *datapath.Datapath
	log  *slog.Logger
	goOn func(wait func())
}

// attachAll hooks devices, and returns the outcome for each. The kernel waits for an RCU
// grace period at each hook, with its lock of rtnetlink held: hooks that wait at a time are
// not ready sooner, and others that need that lock wait for all of them.
func (a *attacher) attachAll(devices map[int]datapath.Delivery, hooks []datapath.Hook) map[int]error {
	outcome := make(map[int]error, len(devices))
	if len(devices) == 0 {
		return outcome
	}
	a.goOn(func() {
		for index, how := range devices {
			outcome[index] = a.attach(index, how, hooks)
		}
	})
	return outcome
}

// attach attaches all of hooks to a device, or none.
func (a *attacher) attach(ifindex int, how datapath.Delivery, hooks []datapath.Hook) (err error) {
	defer func() {
		if err != nil {
			a.detach(ifindex, hooks)
		}
	}()
	if err := a.dp.Track(ifindex, how); err != nil {
		return err
	}
	for _, h := range hooks {
		if err := a.dp.Attach(h, ifindex); err != nil {
			return err
		}
	}
	return nil
}

// detachAll unhooks devices.
func (a *attacher) detachAll(devices map[int][]datapath.Hook) {
	if len(devices) == 0 {
		return
	}
	a.goOn(func() {
		for index, hooks := range devices {
			a.detach(index, hooks)
		}
	})
}

// detach detaches hooks from a device, which may be gone already: those that make tokens
// before those that drop them.
func (a *attacher) detach(ifindex int, hooks []datapath.Hook) {
	var errs []error
	for _, h := range slices.Backward(hooks) {
		errs = append(errs, a.dp.Detach(h, ifindex))
	}
	errs = append(errs, a.dp.Untrack(ifindex))
	if err := errors.Join(errs...); err != nil {
		a.log.Error("unhooking a device", "ifindex", ifindex, "error", err)
	}
}

// enforce makes what is attached equal to what is wanted, for each device. What
// deletes all filters of a device deletes SCON's, too.
func (a *attacher) enforce(want map[int][]datapath.Hook, attached []datapath.Attached) error {
	there := make(map[datapath.Attached]bool, len(attached))
	for _, found := range attached {
		there[found] = true
	}
	for index, hooks := range want {
		for _, h := range hooks {
			if there[datapath.Attached{Hook: h, Ifindex: index}] {
				continue
			}
			if err := a.dp.Attach(h, index); err != nil { // removed devices are announced
				a.log.Debug("attaching a hook again", "error", err)
			}
		}
	}
	for _, found := range attached {
		if slices.Contains(want[found.Ifindex], found.Hook) {
			continue
		}
		if err := a.dp.Detach(found.Hook, found.Ifindex); err != nil {
			return err
		}
	}
	for _, ifindex := range a.dp.Tracked() {
		if want[ifindex] != nil {
			continue
		}
		if err := a.dp.Untrack(ifindex); err != nil {
			return err
		}
	}
	return nil
}

// move attaches SCON's program again, in its place among others.
func (a *attacher) move(where datapath.Attached) {
	err := a.dp.Detach(where.Hook, where.Ifindex)
	if err == nil {
		err = a.dp.Attach(where.Hook, where.Ifindex)
	}
	if err != nil {
		a.log.Error("attaching a program in its place again", "ifindex", where.Ifindex, "error", err)
	}
}
