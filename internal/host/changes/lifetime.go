package changes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// lifetimes withdraws decisions when IPv6 routes expire. The kernel ignores a route from
// then on, and announces its removal with the next garbage collection, up to 30 s later
// (net/ipv6/ip6_fib.c, fib6_check_expired, fib6_run_gc). Nor does it announce that a router
// advertisement, or a command about an address, makes a lifetime shorter or longer
// (net/ipv6/ndisc.c, ndisc_router_discovery; addrconf.c, addrconf_prefix_rcv,
// modify_prefix_route): where there are such routes, they are listed once a second.
type lifetimes struct {
	*asker
	out       *output
	protocols map[byte]bool // of routes that may have a lifetime; guarded by the asker's lock

	// Of follow's goroutine.
	routes     map[string]lifetime
	advertised bool // there are routes of router advertisements
}

// lifetime is when a route expires.
type lifetime struct {
	network netip.Prefix
	end     time.Time
	expired bool
}

const (
	// lookInterval is the time between two lists of such routes.
	lookInterval = 900 * time.Millisecond
	// wakeInterval is the same where they may have changed.
	wakeInterval = 100 * time.Millisecond
	// rounding is more than the kernel's answer is short of, and than it takes for an
	// answer that is not 0: 10 ms each.
	rounding = 30 * time.Millisecond
)

// openLifetimes returns nil on a kernel without IPv6.
func openLifetimes(out *output) (_ *lifetimes, err error) {
	a, err := openAsker()
	if err != nil {
		return nil, err
	}
	l := &lifetimes{asker: a, out: out, protocols: map[byte]bool{unix.RTPROT_RA: true, unix.RTPROT_KERNEL: true}}
	if err = l.ask.Strict(); err == nil {
		err = l.read()
	}
	if err != nil {
		err = errors.Join(err, l.ask.Close())
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil, nil
		}
		return nil, fmt.Errorf("list IPv6 routes: %w", err)
	}
	l.run(l.follow)
	return l, nil
}

// list calls fn for each IPv6 route of a protocol, 0 for all.
func (l *lifetimes) list(protocol byte, fn func(nlmsg.Message)) error {
	data := make([]byte, unix.SizeofRtMsg)
	data[0], data[5] = unix.AF_INET6, protocol
	return l.ask.Request(nlmsg.Request{Type: unix.RTM_GETROUTE, Flags: unix.NLM_F_DUMP, Data: data}, fn)
}

// note takes a message about an IPv6 route or address: lifetimes may have changed.
func (l *lifetimes) note(m nlmsg.Message) {
	isRoute := m.Type == unix.RTM_NEWROUTE
	if isRoute {
		if _, left := routeLifetime(m.Data); left == 0 {
			return
		}
	}
	l.tell(func() {
		if isRoute {
			l.protocols[m.Data[5]] = true
		}
	})
}

// rtaNexthop is RTA_NH_ID.
const rtaNexthop = 30

// routeLifetime returns what tells an IPv6 route from others, and for how long it is one
// yet: 0 for always, less if it is none any more.
func routeLifetime(data []byte) (key string, left time.Duration) {
	if len(data) < unix.SizeofRtMsg {
		return "", 0
	}
	identity := append([]byte{}, data[:8]...) // without its flags
	for typ, data := range nlmsg.Attributes(data[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST, unix.RTA_SRC, unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_PRIORITY, unix.RTA_TABLE, rtaNexthop:
			identity = append(append(identity, byte(typ)), data...)
		case unix.RTA_CACHEINFO:
			const expires, userHZ = 8, 100 // rta_expires of struct rta_cacheinfo
			if len(data) >= expires+4 {
				left = time.Duration(int32(binary.NativeEndian.Uint32(data[expires:]))) * time.Second / userHZ
			}
		}
	}
	return string(identity), left
}

// follow withdraws decisions as routes expire.
func (l *lifetimes) follow() {
	looked := time.Now()
	for due := looked.Add(wakeInterval); ; { // of a route that had less than 10 ms left, too
		timer := time.NewTimer(time.Until(due))
		select {
		case _, ok := <-l.wake:
			timer.Stop()
			if !ok {
				return
			}
			if soon := looked.Add(wakeInterval); soon.Before(due) {
				due = soon
			}
		case <-timer.C:
			err := l.look()
			looked = time.Now()
			if due = l.next(looked); err != nil {
				due = looked.Add(lookInterval)
			}
		}
	}
}

// next returns when to look again.
func (l *lifetimes) next(now time.Time) time.Time {
	next := now.Add(time.Hour)
	if len(l.routes) > 0 || l.advertised {
		next = now.Add(lookInterval)
	}
	for _, r := range l.routes {
		if !r.expired && r.end.Before(next) {
			next = r.end
		}
	}
	return next
}

// look lists the routes again, and withdraws the decisions about those that have expired
// since the last time, or are valid again.
func (l *lifetimes) look() error {
	was := l.routes
	err := l.read()
	if err != nil {
		l.routes = was
		l.out.emit(Event{Kind: Route, Reason: fmt.Sprintf("IPv6 routes cannot be listed: %v", err), Stale: true})
	}
	for key, r := range l.routes {
		if r.expired == was[key].expired {
			continue
		}
		what := "is valid again"
		if r.expired {
			what = "has expired"
		}
		e := Event{Kind: Route, Reason: fmt.Sprintf("route %v %s", r.network, what), Stale: true}
		if r.network.Bits() > 0 {
			e.Scope.Network = r.network
		}
		l.out.emit(e)
	}
	return err
}

// read lists the routes that have a lifetime, or are a router's.
func (l *lifetimes) read() error {
	l.mu.Lock()
	protocols := slices.Collect(maps.Keys(l.protocols))
	l.mu.Unlock()
	was := l.routes
	l.routes, l.advertised = make(map[string]lifetime), false
	for _, protocol := range protocols {
		err := l.list(protocol, func(m nlmsg.Message) {
			key, left := routeLifetime(m.Data)
			if key == "" || m.Data[5] != protocol {
				return
			}
			l.advertised = l.advertised || protocol == unix.RTPROT_RA
			now := time.Now()
			if left != 0 {
				l.routes[key] = lifetime{routeNetwork(m.Data), now.Add(left + rounding), left < 0}
			} else if r := was[key]; !r.expired && now.Before(r.end) && r.end.Before(now.Add(2*rounding)) {
				l.routes[key] = r // it ends within 10 ms, or has no lifetime any more: by then it is known
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// routeNetwork is the destination of an IPv6 route.
func routeNetwork(data []byte) netip.Prefix {
	dst := netip.IPv6Unspecified()
	for typ, value := range nlmsg.Attributes(data[unix.SizeofRtMsg:]) {
		if typ == unix.RTA_DST {
			dst, _ = netip.AddrFromSlice(value)
		}
	}
	network, _ := dst.Prefix(int(data[1]))
	return network
}
