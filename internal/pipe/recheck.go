package pipe

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Recheck says that the network's rules may have changed. Connections end that
// it would not let come about any more. It returns at once.
func (b *Broker) Recheck() {
	select {
	case b.changed <- struct{}{}:
	default: // it is said already
	}
}

// recheckPause is the least time between two rounds: rules may change often.
const recheckPause = time.Second

// obey asks the network again after changes.
func (b *Broker) obey() {
	for {
		select {
		case <-b.changed:
		case <-b.ctx.Done():
			return
		}
		b.detachAll()
		b.recheck()
		select {
		case <-time.After(recheckPause):
		case <-b.ctx.Done():
			return
		}
	}
}

// path is what the network is asked about once for all connections of it.
type path struct {
	client uint64 // network namespace
	asked  netip.AddrPort
	to     *name
}

// recheck asks about all paths of connections.
func (b *Broker) recheck() {
	b.mu.Lock()
	clients := make(map[path]*session)
	for c := range b.connections {
		if s := c.ends[0].owner; c.to != nil && !c.over && !s.over {
			clients[path{s.party.Netns, c.name, c.to}] = s
		}
	}
	b.mu.Unlock()
	var asking sync.WaitGroup
	for p, s := range clients {
		asking.Go(func() {
			if !b.isOpen(p, s) {
				b.cut(p)
			}
		})
	}
	asking.Wait()
}

// cut ends the connections of a path.
func (b *Broker) cut(p path) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.connections {
		if c.to == p.to && c.name == p.asked && c.ends[0].party.Netns == p.client && !c.over {
			b.counts.Refused["rules changed"]++
			b.log.Debug("pipe: the network does not let a connection be any more", "name", p.asked)
			c.reset()
		}
	}
}

// isOpen says whether a probe arrives where the connections lead. What cannot be
// found out is open.
func (b *Broker) isOpen(p path, s *session) bool {
	client, server := s.stay(), p.to.owner.stay()
	for _, s := range []*session{client, server} {
		if s == nil {
			return true // a process has ended: so do they
		}
		defer s.release()
	}
	for {
		listens := b.hasName(p.to)
		if client.arrives(p, server, listens) {
			return true
		}
		if listens == b.hasName(p.to) {
			return false
		}
	}
}

func (b *Broker) hasName(n *name) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.names[n]
}

// arrives probes a path. Where nobody listens any more, its name is taken again
// meanwhile; if somebody else has it, the probe may arrive there.
func (s *session) arrives(p path, server *session, listens bool) bool {
	want, taken := p.to, false
	if !listens {
		var err error
		if want, err = server.standIn(p.to.addr); err == nil {
			defer want.tcp.Close()
		} else if taken = errors.Is(err, unix.EADDRINUSE); !taken {
			return true
		}
	}
	for range 2 { // a busy machine may lose one
		got, _, err := s.resolve(p.asked)
		switch {
		case err == nil:
			return taken || got == want
		case errors.Is(err, errElsewhere):
			return taken
		case !isRefusal(err):
			return true
		case !errors.Is(err, unix.ETIMEDOUT):
			return false
		}
	}
	return false
}

// isRefusal says whether an error is the network's answer.
func isRefusal(err error) bool {
	for _, errno := range []unix.Errno{
		unix.ETIMEDOUT, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.EPERM, unix.ENOPROTOOPT,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// stay is a session that others may work with while the process ends; nil if it
// has ended.
func (s *session) stay() *session {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.over {
		return nil
	}
	fd, err := unix.FcntlInt(s.netns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &session{b: s.b, party: s.party, netns: os.NewFile(uintptr(fd), "netns")}
}

// standIn takes a name's address again that its owner has given back, to be
// found there by a probe.
func (s *session) standIn(addr netip.AddrPort) (*name, error) {
	n := &name{owner: s, addr: addr}
	err := s.inNetns(func() (err error) {
		n.tcp, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(addr))
		return err
	})
	if err != nil {
		return nil, err
	}
	s.b.running.Go(n.receiveProbes)
	return n, nil
}
