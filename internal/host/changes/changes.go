// Package changes follows everything the kernel announces that can make the
// express path decide differently from the regular path: rules, devices,
// addresses, routes, neighbours, forwarding tables, filters, settings, IPsec.
// It works on the network namespace of the calling thread.
//
// Changes without an announcement (sysctls without a netconf message, ipsets,
// iptables-legacy without its lock) are covered by leases and by package express.
package changes

import (
	"context"
	"net/netip"
	"sync"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Kind is what changed.
type Kind int

// The kinds of change.
const (
	Ruleset   Kind = iota // nftables, iptables-nft, iptables-legacy
	Link                  // a device, a bridge port, a namespace's number
	Address               // an IP address
	Route                 // an IP route or a nexthop
	Rule                  // a policy routing rule
	Neighbour             // an IP neighbour
	FDB                   // a MAC address in a bridge's or a tunnel's table
	Filter                // a tc filter or qdisc, an XDP program
	Netconf               // a setting of IP on a device
	IPsec                 // an IPsec policy
	Overrun               // announcements were lost: any of the above
)

func (k Kind) String() string {
	return [...]string{
		"ruleset", "link", "address", "route", "rule", "neighbour", "fdb", "filter", "netconf", "ipsec", "overrun",
	}[k]
}

// Event is one change. Changes that are neither Stale nor concern the Topology
// are not reported.
type Event struct {
	Kind     Kind
	Number   uint64 // of the event: from 1, in the order in which OnStale is called and events are queued
	Ifindex  int    // of the device concerned, 0 for none or several
	Gone     bool   // the device does not exist any more
	Reason   string // for logs: "nftables generation 17 by nft"
	Topology bool   // what package discover found may be outdated
	Stale    bool   // decisions may be wrong: those in Scope have to be confirmed
	Scope    Scope
	// Message, if it has data, is one of nftables that is announced before its transaction
	// ends, and the rest is empty but for the kind. OnStale alone has it, until it returns.
	Message nlmsg.Message
	early   bool // announced before it takes effect
}

// Scope is what a stale change can concern, at most. One of its fields is set, or Ports and
// NextHop; the zero Scope is everything.
type Scope struct {
	Ports   [2]int       // what enters or leaves by these devices, if they are containers' ports; 0 for none
	NextHop MAC          // what leaves to this address, or comes from it; with Ports, by others of them
	Network netip.Prefix // connections with an address in it, before or after translation
}

// Options say what to do at a change.
type Options struct {
	// OnStale is called for every stale change at once, in the goroutine that
	// read it and before the event is queued; and again if the change was announced
	// before it took effect. It must not block, and several goroutines may call it at
	// a time.
	OnStale func(Event)
	// RulesOnly is for those who need to hear of rules alone.
	RulesOnly bool
	// Messages has OnStale called for every message of nftables.
	Messages bool
}

// queueLength is how many events wait for the receiver before one Overrun
// replaces them.
const queueLength = 256

// buffer is the size of the kernel's receive buffers in bytes: thousands of
// messages.
const buffer = 4 << 20

// rulesBuffer is the size for every message of nftables: a transaction of some ten
// thousand rules. The kernel takes the memory when it needs it.
const rulesBuffer = 64 << 20

// Watch reports changes from when it returns until ctx ends. After that, or
// when a source fails, the channel is closed: if ctx has not ended, changes
// are being missed.
func Watch(ctx context.Context, opts Options) (<-chan Event, error) {
	return watch(ctx, opts, limits{buffer: buffer, rules: rulesBuffer, queue: queueLength, lock: legacyLock})
}

// limits are what tests reduce or redirect.
type limits struct {
	buffer int    // bytes
	rules  int    // bytes, for every message of nftables
	queue  int    // events
	lock   string // the lock file of iptables-legacy
}

// source reads announcements of one kind.
type source interface {
	// next waits for announcements and emits events. After an error the source
	// is unusable.
	next() error
	// Close ends a next that waits.
	Close() error
}

func watch(ctx context.Context, opts Options, l limits) (_ <-chan Event, err error) {
	out := &output{onStale: opts.OnStale, messages: opts.Messages && opts.OnStale != nil, events: make(chan Event, l.queue)}
	var sources []source
	closeAll := func() {
		for _, s := range sources {
			s.Close()
		}
	}
	open := []func(*output, limits) (source, error){openRuleset, openLegacy, openKernel, openIPsec}
	if opts.RulesOnly {
		open = open[:2]
	}
	for _, open := range open {
		s, err := open(out, l)
		if err != nil {
			closeAll()
			return nil, err
		}
		if s != nil {
			sources = append(sources, s)
		}
	}

	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, closeAll)
	var readers sync.WaitGroup
	for _, s := range sources {
		readers.Go(func() {
			defer cancel() // if one fails, all end
			for {
				err := s.next()
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					out.emit(overrun("watching ends: " + err.Error()))
					return
				}
			}
		})
	}
	go func() {
		readers.Wait()
		cancel()
		stop()
		closeAll()
		close(out.events)
	}()
	return out.events, nil
}

// overrun returns the event that stands for any number of unknown ones.
func overrun(reason string) Event {
	return Event{Kind: Overrun, Reason: reason, Topology: true, Stale: true}
}

// output receives the events of the sources.
type output struct {
	onStale  func(Event)
	messages bool       // it takes every message of nftables
	mu       sync.Mutex // serialises senders
	number   uint64     // of the last event
	events   chan Event
}

// emit reports a change. It never waits for the receiver.
func (o *output) emit(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.number++
	e.Number = o.number
	if e.Stale && o.onStale != nil {
		o.onStale(e)
	}
	select {
	case o.events <- e:
		return
	default:
	}
	for {
		select {
		case <-o.events:
			continue
		default:
		}
		break
	}
	lost := overrun("events were not fetched in time")
	lost.Number = o.number
	o.events <- lost
}
