package hooks

import (
	"context"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/express/discover"
)

// naming are the goroutines that identify containers, and their answers.
type naming struct {
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup
	answers chan Identified
}

// Identified is the container behind a port.
type Identified struct {
	port      *Port
	container discover.Container
	pair      *discover.Pair // nil if it was not found
}

func newNaming() naming {
	ctx, cancel := context.WithCancel(context.Background())
	return naming{ctx: ctx, cancel: cancel, answers: make(chan Identified, 64)}
}

// close waits for the goroutines, and closes the pairs that no port got.
func (n *naming) close() {
	n.cancel()
	n.running.Wait()
	close(n.answers)
	for i := range n.answers {
		i.close()
	}
}

func (i Identified) close() {
	if i.pair != nil {
		i.pair.Close()
	}
}

// Identified delivers what the loop has to give to SetContainer.
func (h *Hooks) Identified() <-chan Identified { return h.naming.answers }

// SetContainer gives a port its container, if it is still hooked.
func (h *Hooks) SetContainer(i Identified) {
	if h.ports[i.port.Index] != i.port {
		i.close()
		return
	}
	i.port.Container = i.container
	if i.pair != nil {
		i.port.closePair()
		i.port.pair = i.pair
	}
	c, unnamed := h.opts.Owner(i.port.Name) // perhaps only since the search began
	if unnamed {
		i.port.Container = c
	}
	h.withhold(i.port, !unnamed && h.declared.isIdentified(i.container))
	var r discover.Reception
	var err error
	h.opts.GoOn(func() { r, err = h.delivery.reception(i.port) })
	h.delivery.write(i.port, r, err)
}

// Identify searches for the container behind a hooked port again.
func (h *Hooks) Identify(p *Port) { h.identify(p, p.Port) }

// identify finds the container behind a port in a goroutine. at is the port as it
// is now, which the loop may change meanwhile.
func (h *Hooks) identify(p *Port, at discover.Port) {
	n := &h.naming
	n.running.Go(func() {
		wait := firstRetry
		for try := range identifyRetries {
			i := h.search(p, at)
			select {
			case n.answers <- i:
			case <-p.ctx.Done():
				i.close()
				return
			}
			if h.declared.enough(try, i.container) {
				return
			}
			select {
			case <-time.After(wait):
			case <-p.ctx.Done():
				return
			}
			wait = min(2*wait, time.Minute)
		}
	})
}

// Where the settings keep containers regular, a port is withheld until its
// container is identified, which is tried again after increasing pauses.
const (
	firstRetry      = 2 * time.Second
	identifyRetries = 16
	// nameTries is how often a name is asked for that is only shown, for a minute: the
	// engine of a busy machine answers late; a pod's containers may start after its port,
	// and those that prepare it end.
	nameTries = 6
)

// enough reports whether a container is not searched for again after a try.
func (d declared) enough(try int, c discover.Container) bool {
	switch {
	case c.Pod != "":
		return try >= nameTries-1
	case d.containers:
		return d.isIdentified(c)
	default:
		return !c.Unknown || d.isIdentified(c) || try >= nameTries-1
	}
}

func (h *Hooks) search(p *Port, at discover.Port) Identified {
	i := Identified{port: p, container: h.opts.Identify(p.ctx, at)}
	pair, err := discover.OpenPair(at, i.container)
	if err != nil { // it may just have got another owner
		i.container = h.opts.Identify(p.ctx, at)
		pair, err = discover.OpenPair(at, i.container)
	}
	if err != nil {
		h.opts.Logger.Debug("opening a veth pair", "dev", at.Name, "error", err)
		return i
	}
	i.pair = pair
	return i
}
