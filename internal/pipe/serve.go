package pipe

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

// Run runs the pipe service until ctx ends or an operator stops it: the broker, the watch
// for changes of rules, and the control socket. copier is as in Options.
func Run(ctx context.Context, o service.Options, copier NewCopier) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	unlock, err := state.Lock(state.Pipe.Dir(o.StateDir))
	if err != nil {
		return err
	}
	defer unlock()
	c := o.Config.Pipe
	b, err := New(Options{
		Socket: Socket(o.StateDir), Allow: c.Allow, MemoryLimit: c.MemoryLimit, Share: c.PerContainerShare, Engines: engines(c.Engines), Copier: copier, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	network, err := changes.Watch(ctx, changes.Options{OnStale: b.networkChanged})
	if err != nil {
		return err
	}
	s := &server{b, stop, time.Now()}
	served, err := service.Serve(ctx, o, service.Server{
		Service: state.Pipe, Metrics: c.Metrics, WriteMetrics: s.Metrics,
		Handler: control.Handler(s, api.ThisProcess(o.Version), b), Failed: stop,
	})
	if err != nil {
		return err
	}
	o.Logger.Info("the pipe is up", "socket", Socket(o.StateDir))
	go service.NewWatchdog().Probe(ctx, func() error { b.Status(); return nil }, b.pulse)
	for range network { // until ctx ends; OnStale is called before
	}
	if ctx.Err() == nil {
		err = errors.New("the kernel no longer announces changes of the network")
	}
	stop()
	<-served
	return errors.Join(err, state.Pipe.Remove(o.StateDir))
}

// engines converts names from the settings, which have been validated.
func engines(names []string) []Engine {
	all := []Engine{}
	for _, name := range names {
		if e, ok := ParseEngine(name); ok {
			all = append(all, e)
		}
	}
	return all
}

// server answers the control socket.
type server struct {
	broker  *Broker
	stop    func()
	started time.Time
}

// Stop ends the service.
func (s *server) Stop() error {
	s.stop()
	return nil
}

// Metrics writes the broker's metrics.
func (s *server) Metrics(w io.Writer) error { return writeMetrics(w, s.broker.Status(), s.started) }

// Clean removes the files of a broker that died. The caller holds the lock of the
// service's directory. The directory that containers mount remains: with a new one, they
// could not reach the next broker.
func Clean(o service.Options) error {
	if err := os.Remove(Socket(o.StateDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return state.Pipe.Remove(o.StateDir)
}
