package express

import (
	"net/http"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/pipe"
)

// startBroker starts the pipe's broker, if it is wanted. Where it cannot work
// everything else does.
func (d *Daemon) startBroker() {
	c := d.opts.Config.Pipe
	if !c.Enabled {
		return
	}
	helper := ""
	if c.CopyDevice {
		var err error
		if helper, err = pipe.FindCopyHelper(); err != nil {
			d.log.Warn("no device copies for the pipe, processors do", "error", err)
		}
	}
	d.broker, d.noPipe = pipe.New(pipe.Options{
		Socket: pipe.Socket(d.opts.StateDir), Allow: c.Allow, MemoryLimit: c.MemoryLimit, CopyHelper: helper, Logger: d.log,
	})
	if d.broker != nil {
		d.obeys.Store(d.broker)
	}
	if d.noPipe != nil {
		d.log.Error("the pipe does not work; everything else does", "error", d.noPipe)
	}
}

// stopBroker ends it, once, with all its connections.
func (d *Daemon) stopBroker() error {
	b := d.broker
	if b == nil {
		return nil
	}
	d.broker = nil
	return b.Close()
}

// Pipe is the broker's state.
func (b backend) Pipe() (api.Pipe, error) {
	return inLoop(b, func(d *Daemon) (p api.Pipe, err error) {
		switch {
		case d.broker != nil:
			return d.broker.Status(), nil
		case d.noPipe != nil:
			return p, d.noPipe
		default:
			return p, &api.Error{Status: http.StatusNotFound, Message: "this daemon has no pipe: set pipe.enabled in its configuration"}
		}
	})
}

// recheckPipe has the broker ask the network again: decisions are stale. Any
// goroutine may call it.
func (d *Daemon) recheckPipe() {
	if b := d.obeys.Load(); b != nil {
		b.Recheck()
	}
}
