package main

import (
	"context"

	"github.com/scon-project/scon/internal/express"
)

// daemonSide is what changes the kernel; tests put something harmless here.
type daemonSide struct {
	// run is the daemon. It returns when ctx ends or a client stops it.
	run func(ctx context.Context, o express.Options) error

	// clean removes everything a dead daemon left behind.
	clean func(o express.Options) error
}

var realDaemon = daemonSide{run: express.Run, clean: express.Clean}
