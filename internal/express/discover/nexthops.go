package discover

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// nexthops are the kernel's next-hop objects by their ID. Routes refer to them (nhid), and
// show their devices only while the sysctl nexthop_compat_mode is 1.
type nexthops map[uint32]*nexthop

// nexthop is a next hop, or a group of others.
type nexthop struct {
	dev   int
	is    exit
	group []uint32
	idle  time.Duration // of a resilient group, its idle timer
	used  bool          // by a route
}

// rtaNexthop is RTA_NH_ID.
const rtaNexthop = 30

// Attributes NHA_* of a next-hop object, and NHA_RES_GROUP_IDLE_TIMER.
const (
	nhaID        = 1
	nhaGroup     = 2
	nhaOIF       = 5
	nhaGateway   = 6
	nhaEncapType = 7
	nhaResilient = 12
	nhaIdleTimer = 2
)

const (
	sizeofNhmsg        = 8 // struct nhmsg
	sizeofNexthopGroup = 8 // struct nexthop_grp, which begins with an ID
)

// readNexthops reads all of them.
func readNexthops(sock *nlmsg.Requests) (nexthops, error) {
	found := make(nexthops)
	err := sock.Request(nlmsg.Request{Type: unix.RTM_GETNEXTHOP, Flags: unix.NLM_F_DUMP, Data: make([]byte, sizeofNhmsg)}, found.note)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil
	}
	return found, err
}

// note notes the next hop of a message. It ignores messages that are too short.
func (n nexthops) note(m nlmsg.Message) {
	if m.Type != unix.RTM_NEWNEXTHOP || len(m.Data) < sizeofNhmsg {
		return
	}
	var id uint32
	var hop nexthop
	for typ, data := range nlmsg.Attributes(m.Data[sizeofNhmsg:]) {
		switch typ {
		case nhaID:
			id = native32(data)
		case nhaOIF:
			hop.dev = int(native32(data))
		case nhaGateway:
			hop.is |= further
		case nhaEncapType:
			hop.is |= encapsulation(data)
		case nhaGroup:
			for ; len(data) >= sizeofNexthopGroup; data = data[sizeofNexthopGroup:] {
				hop.group = append(hop.group, native32(data[:4]))
			}
		case nhaResilient:
			hop.idle = idleTimer(data)
		}
	}
	n[id] = &hop
}

// idleTimer returns the idle timer of a resilient group.
func idleTimer(group []byte) (idle time.Duration) {
	const userHZ = 100
	for typ, data := range nlmsg.Attributes(group) {
		if typ == nhaIdleTimer {
			idle = time.Duration(native32(data)) * time.Second / userHZ
		}
	}
	return idle
}

// get returns the next hop that a route's attribute names, nil if there is none.
func (n nexthops) get(id []byte) *nexthop { return n[native32(id)] }

// addTo adds the devices of a next hop, which may be nil, or of those of a group.
func (n nexthops) addTo(e exits, hop *nexthop, is exit) {
	if hop == nil {
		return
	}
	hop.used = true
	e.addDevice(hop.dev, is|hop.is)
	if len(hop.group) > 1 {
		is |= spread
	}
	for _, id := range hop.group {
		if member := n[id]; member != nil {
			e.addDevice(member.dev, is|member.is)
		}
	}
}

// idle is the shortest idle timer of the resilient groups that a route uses, 0 if there is
// none.
func (n nexthops) idle() (least time.Duration) {
	for _, hop := range n {
		if hop.used && hop.idle > 0 && (least == 0 || hop.idle < least) {
			least = hop.idle
		}
	}
	return least
}

// native32 reads an integer in host order, 0 if it has another size.
func native32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
