package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/scon-project/scon/internal/config"
)

// daemonOptions are daemon.Options.
type daemonOptions struct {
	Config                  config.Config
	StateDir, Socket, Netns string
	Logger                  *slog.Logger
	Version                 string
	Ready                   func()
}

// daemonSide is what changes the kernel; tests put something harmless here.
type daemonSide struct {
	// run is the daemon. It returns when ctx ends or a client stops it.
	run func(ctx context.Context, o daemonOptions) error

	// clean removes everything a dead daemon left behind.
	clean func(o daemonOptions) error
}

var realDaemon = daemonSide{
	run:   func(context.Context, daemonOptions) error { return errors.New("this build has no datapath") },
	clean: func(daemonOptions) error { return errors.New("this build has no datapath") },
}
