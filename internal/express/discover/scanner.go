package discover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Scanner reads the topology again and again. To read all devices takes long where there
// are thousands: it remembers them, and reads those again that have changed. Close is its
// end.
type Scanner struct {
	sock    *nlmsg.Requests
	devices map[int]readDev // by ifindex; nil before the first Scan
	exits   exits
	asks    Question
	idle    time.Duration // as Topology.IdleTimer
}

// readDev is a device as last read.
type readDev struct {
	netlink.Link
	qdisc string // kind of the root qdisc, "" if there is none
	bridging
}

// NewScanner returns a Scanner of the network namespace of the calling thread.
func NewScanner() (*Scanner, error) {
	sock, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &Scanner{sock: sock}, nil
}

// Close closes the socket.
func (s *Scanner) Close() error { return s.sock.Close() }

// Scan reads the topology. A missing named device is an error, unless Lenient
// is set.
func (s *Scanner) Scan(opts Options) (t Topology, err error) {
	if s.devices, err = s.readAll(); err != nil {
		return t, fmt.Errorf("list devices: %w", err)
	}
	if s.exits, s.idle, err = readExits(s.sock); err != nil {
		return t, fmt.Errorf("list routes: %w", err)
	}
	if t, err = s.topology(opts); err != nil {
		return t, err
	}
	s.asks, err = s.readQuestion(func(ifindex int) bool {
		return slices.ContainsFunc(t.Ports, func(p Port) bool { return p.Index == ifindex })
	})
	t.Asks = s.asks
	return t, err
}

// Update is Scan where only devices have changed since the last one, and no route, rule or
// filter has. It reports false, and has read nothing, if one of them is more than the end of
// a pair that no route uses.
func (s *Scanner) Update(opts Options, changed map[int]bool) (t Topology, ok bool, err error) {
	if s.devices == nil {
		return t, false, nil
	}
	news := make(map[int]*readDev)
	for index := range changed {
		news[index] = nil
	}
	for index, d := range s.devices {
		if isPairEnd(d) && d.Attrs().NetNsID < 0 { // its other end's namespace may have got a number
			news[index] = nil
		}
	}
	for index := range news {
		d, err := s.read(index)
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return t, false, fmt.Errorf("read device %d: %w", index, err)
		}
		was, known := s.devices[index]
		_, routed := s.exits[index]
		if routed || known && !isPairEnd(was) || d != nil && !isPairEnd(*d) {
			return t, false, nil
		}
		news[index] = d
	}
	for index, d := range news {
		if d == nil {
			delete(s.devices, index)
		} else {
			s.devices[index] = *d
		}
	}
	t, err = s.topology(opts)
	return t, true, err
}

func isPairEnd(d readDev) bool { return d.Type() == "veth" || d.Type() == Netkit }

// topology is that of the devices as last read.
func (s *Scanner) topology(opts Options) (Topology, error) {
	sc := newScan(s.devices, s.exits, opts)
	sc.found.Asks = s.asks
	sc.found.IdleTimer = s.idle
	if err := sc.findPorts(opts.Bridges); err != nil {
		return Topology{}, err
	}
	sc.findBridged()
	if isAuto(opts.Uplinks) {
		sc.findUplinks()
	} else if err := sc.nameUplinks(opts.Uplinks); err != nil {
		return Topology{}, err
	}
	sort.SliceStable(sc.found.Uplinks, func(i, j int) bool { return sc.found.Uplinks[i].Index < sc.found.Uplinks[j].Index })
	return sc.found, nil
}

// readAll reads all devices. A dump that a change interrupted is repeated: where devices
// come and go all the time that may happen more than once.
func (s *Scanner) readAll() (all map[int]readDev, err error) {
	for range 10 {
		interrupted := false
		all = make(map[int]readDev, len(s.devices))
		err = s.request(0, unix.NLM_F_DUMP, func(m nlmsg.Message, d readDev) {
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			all[d.Attrs().Index] = d
		})
		if err != nil || !interrupted {
			break
		}
	}
	return all, err
}

// read reads one device.
func (s *Scanner) read(index int) (found *readDev, err error) {
	err = s.request(index, 0, func(_ nlmsg.Message, d readDev) { found = &d })
	return found, err
}

// request asks for one device, or for all.
func (s *Scanner) request(index int, flags uint16, fn func(nlmsg.Message, readDev)) error {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	var invalid error
	err := s.sock.Request(nlmsg.Request{Type: unix.RTM_GETLINK, Flags: flags, Data: header}, func(m nlmsg.Message) {
		data := slices.Clone(m.Data) // which the link refers to
		l, err := netlink.LinkDeserialize(nil, data)
		if err != nil {
			invalid = err
			return
		}
		fn(m, readDev{l, qdiscOf(data), bridgingOf(data)})
	})
	return errors.Join(err, invalid)
}

// qdiscOf returns the kind of a device's root qdisc, "" if it has none, as while it is
// down.
func qdiscOf(link []byte) (kind string) {
	for typ, data := range nlmsg.Attributes(link[unix.SizeofIfInfomsg:]) {
		if typ == unix.IFLA_QDISC {
			kind = text(data)
		}
	}
	if kind == "noop" {
		return ""
	}
	return kind
}

// sorted returns devices by their ifindex.
func sorted(devices map[int]readDev) (links []netlink.Link) {
	for _, index := range slices.Sorted(maps.Keys(devices)) {
		links = append(links, devices[index].Link)
	}
	return links
}
