package changes

import (
	"encoding/binary"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// macvlans follows the settings of macvlan devices that are down. One of mode source takes
// packets from the device that it is on, up or not, and the kernel announces settings of no
// device that is down (netdev_state_change in net/core/dev.c): such devices are asked for once a
// second.
type macvlans struct {
	*asker
	out  *output
	down map[int32]string // their settings as they are known; guarded by the asker's lock
}

func openMacvlans(out *output) (*macvlans, error) {
	a, err := openAsker()
	if err != nil {
		return nil, err
	}
	v := &macvlans{asker: a, out: out, down: make(map[int32]string)}
	v.run(v.follow)
	return v, nil
}

// note takes what was announced of a device, the zero device if it is gone.
func (v *macvlans) note(index int32, d device) {
	if d.macvlan && !d.up {
		v.tell(func() { v.down[index] = d.settings })
		return
	}
	v.mu.Lock()
	delete(v.down, index)
	v.mu.Unlock()
}

// follow asks for the devices as long as there are any.
func (v *macvlans) follow() {
	for range v.wake {
		for v.look() {
			select {
			case <-v.wake:
			case <-time.After(lookInterval):
			}
		}
	}
}

// look asks for each device, and withdraws decisions if its settings have changed. It reports
// false if there is none, or at the end.
func (v *macvlans) look() bool {
	v.mu.Lock()
	was := maps.Clone(v.down)
	ended := v.ended
	v.mu.Unlock()
	if ended {
		return false
	}
	ask := make([]byte, unix.SizeofIfInfomsg)
	for index, settings := range was {
		binary.NativeEndian.PutUint32(ask[4:], uint32(index))
		var is device // the zero one if it is gone, which is announced
		_ = v.ask.Request(nlmsg.Request{Type: unix.RTM_GETLINK, Data: ask}, func(m nlmsg.Message) { is = parseDevice(m.Data) })
		if is.macvlan && is.settings == settings {
			continue
		}
		v.out.emit(Event{Kind: Link, Ifindex: int(index), Reason: "settings of " + is.name, Stale: true, Topology: true})
		v.note(index, is)
	}
	return len(was) > 0
}
