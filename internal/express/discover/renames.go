package discover

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"sync"
	"time"
)

// retryEvents is how long after its end an engine's stream of events is opened again.
const retryEvents = 3 * time.Second

// mostEvent bounds one event. It has the container's labels, as an answer has.
const mostEvent = mostAnswer

// followed are the engines whose events are read: those that have known a container.
type followed struct {
	mu      sync.Mutex
	ctx     context.Context // nil: nothing is followed
	renamed func(id string)
	sockets map[string]bool
	running sync.WaitGroup
}

// Follow calls renamed with the identifier of each container that its engine gives another
// name, or connects to a network or disconnects from one, until ctx ends, and with "" when names may have changed unseen. It reads the events
// of the engines with Docker's API that have known a container: an engine without one is left
// alone. It is called before Name. When ctx has ended, Unfollow waits for the last call.
func (n *Namer) Follow(ctx context.Context, renamed func(id string)) {
	f := &n.followed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx, f.renamed, f.sockets = ctx, renamed, make(map[string]bool)
}

// Unfollow returns when renamed is not called any more. The context of Follow has ended.
func (n *Namer) Unfollow() { n.followed.running.Wait() }

// knows is called when the engine behind a socket has known a container.
func (f *followed) knows(socket string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == nil || f.ctx.Err() != nil || f.sockets[socket] {
		return
	}
	f.sockets[socket] = true
	f.running.Go(func() {
		for {
			_ = f.read(socket)
			select {
			case <-time.After(retryEvents):
			case <-f.ctx.Done():
				return
			}
		}
	})
}

// read reads an engine's events until the stream ends.
func (f *followed) read(socket string) error {
	filters := url.Values{"filters": {`{"type":["container","network"],"event":["rename","connect","disconnect"]}`}}
	resp, err := askEngine(f.ctx, socket, "/events?"+filters.Encode())
	if err != nil {
		return fmt.Errorf("ask %s for events: %w", socket, err)
	}
	defer resp.Body.Close()
	f.renamed("") // what was renamed before is not in the stream
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, mostEvent)
	for lines.Scan() {
		var event struct {
			Type  string
			Actor struct {
				ID         string
				Attributes struct{ Container string }
			}
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}
		id := event.Actor.ID
		if event.Type == "network" {
			id = event.Actor.Attributes.Container
		}
		if containerID.MatchString(id) {
			f.renamed(id)
		}
	}
	return lines.Err()
}
