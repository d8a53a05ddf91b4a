package main

import (
	"context"

	"github.com/scon-project/scon/internal/daemon"
)

// daemonSide is what changes the kernel; tests put something harmless here.
type daemonSide struct {
	// run is the daemon. It returns when ctx ends or a client stops it.
	run func(ctx context.Context, o daemon.Options) error

	// clean removes everything a dead daemon left behind.
	clean func(o daemon.Options) error
}

var realDaemon = daemonSide{run: daemon.Run, clean: daemon.Clean}
