package hooks

import (
	"errors"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/scon-project/scon/internal/express/datapath"
)

// attacher attaches programs to devices.
type attacher struct {
	dp         *datapath.Datapath
	log        *slog.Logger
	beatDuring func(wait func())
}

// attachAll hooks devices concurrently where the kernel allows it: at each it
// waits for an RCU grace period, a second for fifty containers. It returns the
// outcome for each device.
func (a *attacher) attachAll(devices map[int]datapath.Delivery, hooks []datapath.Hook) map[int]error {
	outcome := make(map[int]error, len(devices))
	var mu sync.Mutex // guards outcome
	var wg sync.WaitGroup
	for index, how := range devices {
		wg.Go(func() {
			err := a.attach(index, how, hooks)
			mu.Lock()
			defer mu.Unlock()
			outcome[index] = err
		})
	}
	a.beatDuring(wg.Wait)
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
	var group errgroup.Group
	for _, h := range hooks {
		group.Go(func() error { return a.dp.Attach(h, ifindex) })
	}
	return group.Wait()
}

// detachAll unhooks devices concurrently.
func (a *attacher) detachAll(devices map[int][]datapath.Hook) {
	var wg sync.WaitGroup
	for index, hooks := range devices {
		wg.Go(func() { a.detach(index, hooks) })
	}
	a.beatDuring(wg.Wait)
}

// detach detaches hooks from a device, which may be gone already.
func (a *attacher) detach(ifindex int, hooks []datapath.Hook) {
	var errs []error
	for _, h := range hooks {
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
		a.log.Error("moving a program behind others", "ifindex", where.Ifindex, "error", err)
	}
}
