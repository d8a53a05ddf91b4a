package contention

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/netns"
)

// provokeFor is how long threads contend for RTNL to find out which lock it is:
// kernels do not say where it lies. How many there are.
const (
	provokeFor     = 50 * time.Millisecond
	provokeThreads = 4
)

// findRTNL lets threads of this process make and remove devices, which RTNL
// guards: it is the mutex that they wait for the longest.
func (m *Meter) findRTNL() error {
	if err := m.objects.WatchedProcess.Set(uint32(os.Getpid())); err != nil {
		return err
	}
	errs := make([]error, provokeThreads)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { errs[i] = netns.Scratch(provoke) })
	}
	group.Wait()
	if err := errors.Join(append(errs, m.objects.WatchedProcess.Set(uint32(0)))...); err != nil {
		return err
	}
	var longest uint64
	err := m.each(func(address uint64, l contentionLockWaits) {
		if l.Flags&flagMutex != 0 && l.WaitedNs > longest {
			m.rtnl, longest = address, l.WaitedNs
		}
	})
	if err == nil && m.rtnl == 0 {
		err = errors.New("nobody waited for it")
	}
	return err
}

// provoke makes and removes devices for a while.
func provoke() error {
	for end := time.Now().Add(provokeFor); time.Now().Before(end); {
		device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "contend"}, PeerName: "other"}
		if err := netlink.LinkAdd(device); err != nil {
			return err
		}
		if err := netlink.LinkDel(device); err != nil {
			return err
		}
	}
	return nil
}
