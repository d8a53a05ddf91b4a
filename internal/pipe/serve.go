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

// Run is the pipe service: the broker, which hears of changed rules, and answers
// operators at a socket of its own. It works until ctx ends or a client stops it. The
// engine copier is as in Options.
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
		Socket: Socket(o.StateDir), Allow: c.Allow, MemoryLimit: c.MemoryLimit, Copier: copier, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	network, err := changes.Watch(ctx, changes.Options{OnStale: func(changes.Event) { b.Recheck() }})
	if err != nil {
		return err
	}
	s := &server{b, stop, time.Now()}
	served, err := service.Serve(ctx, o, service.Server{
		Service: state.Pipe, Metrics: c.Metrics, WriteMetrics: s.Metrics,
		Handler: control.Handler(s, api.Process{PID: os.Getpid(), Version: o.Version}, b), Failed: stop,
	})
	if err != nil {
		return err
	}
	o.Logger.Info("the pipe is up", "socket", Socket(o.StateDir))
	go service.NewWatchdog().Probe(ctx, func() error { b.Status(); return nil })
	for range network { // until ctx ends; Recheck is called where a change is read
	}
	if ctx.Err() == nil {
		err = errors.New("the kernel no longer announces changes of the network")
	}
	stop()
	<-served
	return errors.Join(err, state.Pipe.Remove(o.StateDir))
}

// server answers operators.
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

// Metrics writes what the broker counts.
func (s *server) Metrics(w io.Writer) error { return writeMetrics(w, s.broker.Status(), s.started) }

// Clean removes what a broker that died has left. The caller holds the lock of the
// service's directory. The directory that containers mount stays: they would not
// find the next broker.
func Clean(o service.Options) error {
	if err := os.Remove(Socket(o.StateDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return state.Pipe.Remove(o.StateDir)
}
