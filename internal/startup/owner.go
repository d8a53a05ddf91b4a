package startup

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/scon-project/scon/internal/api"
)

// Owner is the container that a device of the host belongs to.
type Owner struct {
	Netns       string // path of the namespace with its other end
	ContainerID string // "" in the pool
}

// api returns the owner with paths that other processes can use.
func (o Owner) api(host string) api.Owner {
	netns := o.Netns
	if rest, ok := strings.CutPrefix(netns, "/proc/self/"); ok {
		netns = fmt.Sprintf("/proc/%d/%s", os.Getpid(), rest)
	}
	return api.Owner{Host: host, Netns: netns, Container: o.ContainerID}
}

// owners are those of the host's devices. Listeners hear of every change.
type owners struct {
	mu        sync.Mutex
	of        map[string]Owner // by device
	listeners map[chan []api.Owner]bool
	closed    bool
}

func newOwners() *owners {
	return &owners{of: make(map[string]Owner), listeners: make(map[chan []api.Owner]bool)}
}

// set announces the owner of a device, before the device exists.
func (s *owners) set(host string, o Owner) {
	if host == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[host] = o
	s.publish(o.api(host))
}

func (s *owners) remove(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.of[host]; ok {
		delete(s.of, host)
		s.publish(api.Owner{Host: host, Gone: true})
	}
}

// close ends all streams.
func (s *owners) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for listener := range s.listeners {
		s.endStream(listener)
	}
}

// ownersAhead is how many changes a listener may lag behind before it is dropped.
const ownersAhead = 1024

// follow returns the owners and a channel of later changes. The channel is closed when ctx
// or the agent ends, or when the listener does not keep up.
func (s *owners) follow(ctx context.Context) (now []api.Owner, changes <-chan []api.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = []api.Owner{}
	for host, o := range s.of {
		now = append(now, o.api(host))
	}
	listener := make(chan []api.Owner, ownersAhead)
	if s.closed {
		close(listener)
		return now, listener
	}
	s.listeners[listener] = true
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endStream(listener)
	})
	return now, listener
}

// publish sends a change to every listener. The caller holds the lock.
func (s *owners) publish(o api.Owner) {
	for listener := range s.listeners {
		select {
		case listener <- []api.Owner{o}:
		default:
			s.endStream(listener)
		}
	}
}

// endStream closes a listener's channel, once. The caller holds the lock.
func (s *owners) endStream(listener chan []api.Owner) {
	if s.listeners[listener] {
		delete(s.listeners, listener)
		close(listener)
	}
}
