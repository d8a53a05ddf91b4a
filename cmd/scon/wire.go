package main

import (
	"context"
	"errors"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/express/liberal"
	"github.com/scon-project/scon/internal/pipe"
	pipecontrol "github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup"
	startupcontrol "github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
)

// unit is one of the three services, with what the command line needs of it.
type unit struct {
	state.Service
	name     string   // in messages
	command  []string // runs it in the foreground
	enabled  func(config.Config) bool
	settings func(config.Config) config.Config // those that the service reads
	require  func() error                      // checks its requirements
	dial     func(socket string) *api.Service

	// run runs the service. It returns when ctx ends or a client stops it.
	run func(ctx context.Context, o service.Options) error
	// clean removes everything that the service left behind when it died.
	clean func(o service.Options) error
	// pinned lists what the service has left in the kernel, given the network namespace
	// that it ran in; nil: nothing that outlives it is pinned.
	pinned func(netns string) (left []string, runs string)
	// liberal deals with the connections that are liberal in conntrack after the
	// service's end, as liberal.End does. nil: the service makes none so.
	liberal func(mode string, progress func(done, total int)) ([]liberal.Conn, error)
}

// units returns the services in start order.
func units() []unit {
	return []unit{
		{
			Service: state.Express, name: "daemon", command: []string{"daemon"},
			enabled: func(config.Config) bool { return true }, settings: config.Config.OfExpress,
			require: doctor.Require, dial: func(socket string) *api.Service { return api.Dial(socket).Service },
			run: func(ctx context.Context, o service.Options) error {
				return express.Run(ctx, o, daemonPage(o))
			},
			clean: express.Clean, pinned: express.Pinned, liberal: liberal.End,
		},
		{
			Service: state.Startup, name: "startup service", command: []string{"startup", "serve"},
			enabled: config.Config.HasStartup, settings: config.Config.OfStartup,
			require: func() error { return doctor.RequireRoot("make network namespaces and devices") },
			dial:    func(socket string) *api.Service { return startupcontrol.Dial(socket).Service },
			run:     startup.Run, clean: startup.Clean,
		},
		{
			Service: state.Pipe, name: "pipe broker", command: []string{"pipe", "serve"},
			enabled: func(c config.Config) bool { return c.Pipe.Enabled }, settings: config.Config.OfPipe,
			require: func() error { return doctor.RequireRoot("load BPF programs and find network namespaces of sockets") },
			dial:    func(socket string) *api.Service { return pipecontrol.Dial(socket).Service },
			run: func(ctx context.Context, o service.Options) error {
				return pipe.Run(ctx, o, copier.Configured(o.Config.Pipe.CopyDevice, o.Logger))
			},
			clean: pipe.Clean,
		},
	}
}

// unit returns the unit of a service.
func (t *tool) unit(s state.Service) unit {
	for _, u := range t.units {
		if u.Service == s {
			return u
		}
	}
	panic("no service " + s)
}

// id is the service's name in JSON.
func (u unit) id() string {
	if u.Service == state.Express {
		return "express"
	}
	return string(u.Service)
}

// process returns a service's process, zero if none answers.
func (u unit) process(socket string) (api.Process, error) {
	p, err := u.dial(socket).Process()
	if errors.Is(err, api.ErrNotRunning) {
		return api.Process{}, nil
	}
	return p, err
}
