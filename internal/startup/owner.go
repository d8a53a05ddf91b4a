package startup

import (
	"context"
	"fmt"
	"os"
	"strings"

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

// own announces the owner of a device, before the device exists.
func (a *Agent) own(host string, o Owner) {
	if host == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.owners[host] = o
	a.publish(o.api(host))
}

func (a *Agent) disown(host string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.owners[host]; ok {
		delete(a.owners, host)
		a.publish(api.Owner{Host: host, Gone: true})
	}
}

// ownersAhead is how many changes a listener may lag behind before it is dropped.
const ownersAhead = 1024

// Owners returns the owners of the host's devices and a channel of later changes. The
// channel is closed when ctx or the agent ends, or when the listener does not keep
// up.
func (a *Agent) Owners(ctx context.Context) (now []api.Owner, changes <-chan []api.Owner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now = []api.Owner{}
	for host, o := range a.owners {
		now = append(now, o.api(host))
	}
	listener := make(chan []api.Owner, ownersAhead)
	if a.closed {
		close(listener)
		return now, listener
	}
	a.listeners[listener] = true
	context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.endStream(listener)
	})
	return now, listener
}

// publish sends a change to every listener. The caller holds the lock.
func (a *Agent) publish(o api.Owner) {
	for listener := range a.listeners {
		select {
		case listener <- []api.Owner{o}:
		default:
			a.endStream(listener)
		}
	}
}

// endStream closes a listener's channel, once. The caller holds the lock.
func (a *Agent) endStream(listener chan []api.Owner) {
	if a.listeners[listener] {
		delete(a.listeners, listener)
		close(listener)
	}
}
