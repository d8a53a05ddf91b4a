package express

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/metrics"
	"github.com/scon-project/scon/internal/service"
)

// backend answers API clients, in their goroutines. What needs the daemon's state
// runs in the loop. Conntrack's connections are listed outside it: a million of
// them take longer than the programs wait for a heartbeat.
type backend struct {
	d    *Daemon
	ctx  context.Context
	page service.Page // nil without one
}

// inLoop runs fn in the loop of d. If the loop ends before, or the context, it returns an
// error; fn may still run then, so the caller leaves alone what fn writes.
func inLoop[T any](b backend, fn func(*Daemon) (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	done := make(chan answer, 1)
	call := func() {
		result, err := fn(b.d)
		done <- answer{result, err}
	}
	calls := b.d.calls
	for {
		select {
		case calls <- call:
			calls = nil
		case a := <-done:
			return a.result, a.err
		case <-b.ctx.Done():
			return result, errors.New("the daemon is about to end; 'scon up' starts another")
		}
	}
}

// count brings the table's totals up to date. As eachFlow it never holds the loop
// for long.
func (b backend) count() error {
	for from := uint32(0); ; {
		next, err := inLoop(b, func(d *Daemon) (uint32, error) { return d.table.Count(from, pieceLength), nil })
		if err != nil || next == 0 {
			return err
		}
		from = next
	}
}

func (b backend) Status() (api.Status, error) {
	if err := b.count(); err != nil {
		return api.Status{}, err
	}
	return inLoop(b, func(d *Daemon) (api.Status, error) { return d.view().status() })
}

// Flows lists Conentries, with what conntrack counts of them.
func (b backend) Flows(container string) ([]api.Flow, error) {
	flows, err := source{b}.Flows(container)
	sortFlows(flows)
	return flows, err
}

// source is what the live page sorts itself.
type source struct{ backend }

// Flows are those of the backend in any order.
func (s source) Flows(container string) ([]api.Flow, error) {
	flows := []api.Flow{}
	err := s.eachFlow(container, func(v view, f api.Flow) {
		if len(flows) == 0 && container == "" {
			flows = make([]api.Flow, 0, v.table.Len())
		}
		flows = append(flows, f)
	})
	if err != nil {
		return nil, err
	}
	if len(flows) == 0 || !counting() {
		return flows, nil
	}
	return flows, countRegular(s.d.ct, flows)
}

// Explain says why a connection or a container is, or is not, express.
func (b backend) Explain(subject string) (api.Explanation, error) {
	s, err := api.ParseSubject(subject)
	if err != nil {
		return api.Explanation{}, err
	}
	x, err := inLoop(b, func(d *Daemon) (api.Explanation, error) {
		x := api.Explanation{Subject: subject}
		return x, d.view().explain(s, &x)
	})
	if err != nil {
		return x, err
	}
	found := make(map[api.Tuple][]api.Finding) // by the flow's original tuple
	err = b.eachFlow(s.Container, func(v view, f api.Flow) {
		switch {
		case s.Container == "" && !s.Match(f):
			return
		case s.Container == "":
			all := v.flowFindings(f)
			if len(found) < mostTracked {
				all = append(all, v.wayFindings(f)...)
			}
			found[f.Orig] = append(found[f.Orig], all...)
		}
		x.Flows = append(x.Flows, f)
		x.Express = x.Express || f.State == api.FlowExpress && v.state(time.Now()) == api.StateActive
	})
	if err != nil {
		return api.Explanation{}, err
	}
	sortFlows(x.Flows)
	for _, f := range x.Flows {
		x.Findings = append(x.Findings, found[f.Orig]...)
		delete(found, f.Orig)
	}
	x.Known = x.Known || len(x.Flows) > 0
	if s.Container != "" && !x.Known {
		x.Findings = append(x.Findings, noConnections(&b.d.opts))
	}
	if s.Container != "" || x.Known {
		sortFindings(x.Findings)
		return x, nil
	}
	tracked, err := matching(b.d.ct, s)
	if err != nil {
		return x, err
	}
	x.Known = len(tracked) > 0
	return inLoop(b, func(d *Daemon) (api.Explanation, error) {
		x.Findings = append(x.Findings, d.view().trackedFindings(tracked)...)
		sortFindings(x.Findings)
		return x, nil
	})
}

// Metrics writes them in Prometheus' text format.
func (b backend) Metrics(w io.Writer) error {
	if err := b.count(); err != nil {
		return err
	}
	s, err := inLoop(b, func(d *Daemon) (metrics.Snapshot, error) { return d.view().snapshot() })
	if err != nil {
		return err
	}
	return metrics.Write(w, s)
}

func (b backend) Flush(container string) (int, error) {
	return inLoop(b, func(d *Daemon) (int, error) {
		defer d.sweepEarly(time.Now())
		if container == "" {
			return d.early.FlushAll() + d.composer.FlushAll(), nil
		}
		ports, err := d.view().portsOf(container)
		n := 0
		for _, p := range ports {
			n += d.early.Flush(p.Index) + d.composer.Flush(p.Index)
		}
		return n, err
	})
}

func (b backend) Pause(container string) error { return b.setPaused(container, true) }

func (b backend) Resume(container string) error { return b.setPaused(container, false) }

func (b backend) setPaused(container string, paused bool) error {
	_, err := inLoop(b, func(d *Daemon) (struct{}, error) {
		if container == "" {
			return struct{}{}, d.heartbeat.setPaused(paused)
		}
		ports, err := d.view().portsOf(container)
		for _, p := range ports {
			d.early.Flush(p.Index)
			d.composer.SetPaused(p.Index, paused)
		}
		return struct{}{}, err
	})
	return err
}

// Web returns where the live page is.
func (b backend) Web() (api.Web, error) {
	if b.page == nil {
		return api.Web{}, api.ErrNoWeb
	}
	return api.Web{Address: b.page.URL()}, nil
}

func (b backend) Stop() error {
	b.d.stop()
	return nil
}
