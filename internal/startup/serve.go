package startup

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/internal/metrics"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/startup/docker"
	"github.com/scon-project/scon/internal/state"
)

// Run runs the startup service: the agent and Docker's network driver, if enabled. It
// returns when ctx ends or a client stops it. Attachments and Docker's networks stay.
func Run(ctx context.Context, o service.Options) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	unlock, err := state.Lock(state.Startup.Dir(o.StateDir))
	if err != nil {
		return err
	}
	defer unlock()
	if err := sysctl.MakeWritable(); err != nil {
		return err
	}
	s := &server{stop: stop, started: time.Now()}
	if err := s.start(o); err != nil {
		return errors.Join(err, s.close())
	}
	rules, err := changes.Watch(ctx, changes.Options{RulesOnly: true, OnStale: func(changes.Event) { s.rulesChanged() }})
	if err != nil {
		return errors.Join(err, s.close())
	}
	s.rulesChanged() // they may have, since start has written them
	c := o.Config
	served, err := service.Serve(ctx, o, service.Server{
		Service: state.Startup, Metrics: c.Startup.Metrics, WriteMetrics: s.Metrics,
		Handler: control.Handler(s, api.ThisProcess(o.Version), s.contract()), Failed: stop,
	})
	if err != nil {
		stop()
		return errors.Join(err, s.close())
	}
	o.Logger.Info("startup is up", "agent", s.agent != nil, "docker_driver", s.driver != nil)
	go service.NewWatchdog().Probe(ctx, s.probe, s.loops()...)
	err = attend(ctx, rules)
	stop()
	<-served
	return errors.Join(err, s.close(), state.Startup.Remove(o.StateDir))
}

// attend waits for the end of ctx; OnStale has handled each change already.
func attend(ctx context.Context, rules <-chan changes.Event) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-rules:
			if !ok && ctx.Err() == nil {
				return errors.New("the kernel stopped reporting rule changes")
			}
			if !ok {
				return nil
			}
		}
	}
}

// probe proves that the agent's locks can be taken.
func (s *server) probe() error {
	if s.agent == nil {
		return nil
	}
	_, err := s.agent.Startup()
	return err
}

// loops returns the pulses of the loops that restore rules.
func (s *server) loops() (loops []*service.Pulse) {
	if s.agent != nil {
		loops = append(loops, s.agent.guard.pulse)
	}
	if s.driver != nil {
		loops = append(loops, s.driver.Pulse())
	}
	return loops
}

// server has the components of the service.
type server struct {
	stop    func()
	started time.Time
	agent   *Agent         // nil if disabled
	driver  *docker.Driver // nil if disabled
}

func (s *server) start(o service.Options) (err error) {
	if c := o.Config.Startup; c.Enabled {
		s.agent, err = New(Options{Config: c, StateDir: o.StateDir, Socket: o.Socket, Netns: o.Netns, Logger: o.Logger})
		if err != nil {
			return err
		}
	}
	if c := o.Config.Docker; c.Enabled {
		s.driver, err = docker.New(docker.Options{Socket: c.Socket, Dir: c.Directory, Logger: o.Logger})
	}
	return err
}

func (s *server) close() (err error) {
	if s.driver != nil {
		err = s.driver.Close()
	}
	if s.agent != nil {
		err = errors.Join(err, s.agent.Close())
	}
	return err
}

// rulesChanged makes the agent and the driver check their rules. It returns at once.
func (s *server) rulesChanged() {
	if s.agent != nil {
		s.agent.RulesChanged()
	}
	if s.driver != nil {
		s.driver.RulesChanged()
	}
}

// contract returns the agent's interface for clients, nil without an agent.
func (s *server) contract() control.Agent {
	if s.agent == nil {
		return nil
	}
	return s.agent
}

// Stop ends the service.
func (s *server) Stop() error {
	s.stop()
	return nil
}

// Metrics writes the service's metrics.
func (s *server) Metrics(w io.Writer) error {
	var (
		state control.Startup
		times map[Stage]metrics.Times
	)
	if s.agent != nil {
		var err error
		if state, err = s.agent.Startup(); err != nil {
			return err
		}
		times = s.agent.stages.times()
	}
	return writeMetrics(w, state, times, s.started)
}

// Clean removes what a dead startup service left and no container uses. The caller
// holds the lock of the service's directory.
func Clean(o service.Options) error {
	if WasAt(o.StateDir) {
		a, err := New(Options{Config: o.Config.Startup, StateDir: o.StateDir, Socket: o.Socket, Netns: o.Netns, Logger: o.Logger})
		if err != nil {
			return err
		}
		if err := a.Close(); err != nil {
			return err
		}
	}
	return state.Startup.Remove(o.StateDir)
}
