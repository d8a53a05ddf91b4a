package contention

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

// provokeFor is how long threads contend for RTNL to find its address, which the
// kernel does not publish; provokeThreads is the number of threads.
const (
	provokeFor     = 100 * time.Millisecond
	provokeThreads = 4
)

// findRTNL finds RTNL: threads of this process make and remove devices, which RTNL
// serialises. RTNL is the mutex for which they wait most often.
func (m *Meter) findRTNL() error {
	if err := m.objects.WatchedProcess.Set(uint32(os.Getpid())); err != nil {
		return err
	}
	err := m.together()
	if err := errors.Join(err, m.objects.WatchedProcess.Set(uint32(0))); err != nil {
		return err
	}
	var most uint64
	err = m.each(func(address uint64, l contentionLockWaits) {
		if l.Flags&flagMutex != 0 && l.Waits > most {
			m.rtnl, most = address, l.Waits
		}
	})
	if err == nil && m.rtnl == 0 {
		err = errors.New("no thread waited for it")
	}
	return err
}

// together makes several threads contend, each in a namespace of its own. All
// namespaces are made first, since that takes other locks.
func (m *Meter) together() error {
	errs := make([]error, provokeThreads)
	var group, made sync.WaitGroup
	begin := make(chan struct{})
	made.Add(provokeThreads)
	for i := range errs {
		group.Go(func() {
			var once sync.Once
			defer once.Do(made.Done) // also if Scratch fails
			errs[i] = netns.Scratch(func() error {
				once.Do(made.Done)
				<-begin
				return provoke()
			})
		})
	}
	made.Wait()
	err := m.Reset()
	close(begin)
	group.Wait()
	return errors.Join(append(errs, err)...)
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
