package scontest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/startup"
	"github.com/scon-project/scon/internal/state"
)

// childEnv holds the task of a process that is no test, but a daemon.
const childEnv = "SCON_TEST_CHILD"

// Main runs the tests of a package, or the daemon that this process is instead.
// forceClsact has its daemon hook by clsact; it is nil where no Layout asks for
// that.
func Main(m *testing.M, forceClsact func()) (status int) {
	if spec := os.Getenv(childEnv); spec != "" {
		return child(spec, forceClsact)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		return 1
	}
	return m.Run()
}

// Task is what a child does.
type Task struct {
	Service  state.Service // "": express
	Config   config.Config
	StateDir string
	Socket   string
	Clean    bool // clean up after a daemon that died
	Clsact   bool // hook by clsact
	// SCON is the file of the command scon, which is to do the task. If it is
	// empty, the test's program does.
	SCON string
}

// command is how to run a program that does a task: its command line, and what
// its environment has besides the test's. Files of it go into dir.
func (t Task) command(dir string) (args, env []string, err error) {
	if t.SCON != "" {
		args, err = t.sconCommand(dir)
		return args, nil, err
	}
	spec, err := json.Marshal(t)
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	return []string{self}, []string{childEnv + "=" + string(spec)}, err
}

// child does a task and returns the process's exit status.
func child(spec string, forceClsact func()) int {
	var task Task
	if err := json.Unmarshal([]byte(spec), &task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if task.Clsact {
		forceClsact()
	}
	if err := task.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (t Task) run(ctx context.Context) error {
	o := service.Options{
		Config:   t.Config,
		StateDir: t.StateDir,
		Socket:   t.Socket,
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Version:  "test",
	}
	run, clean := express.Run, express.Clean
	switch t.Service {
	case state.Startup:
		run, clean = startup.Run, startup.Clean
	case state.Pipe:
		clean = pipe.Clean
		run = func(ctx context.Context, o service.Options) error {
			return pipe.Run(ctx, o, copier.Configured(o.Config.Pipe.CopyDevice, o.Logger))
		}
	}
	if t.Clean {
		return clean(o)
	}
	others := goleak.IgnoreCurrent()
	before := openFiles()
	if err := run(ctx, o); err != nil {
		return err
	}
	if err := goleak.Find(others); err != nil {
		return fmt.Errorf("after the daemon's end: %w", err)
	}
	if after := openFiles(); !maps.Equal(before, after) {
		return fmt.Errorf("after the daemon's end: open files %v, before %v", after, before)
	}
	return nil
}

// openFiles counts what file descriptors stand for, but for those of Go's
// poller, which opens them when it is needed first, and for the log.
func openFiles() map[string]int {
	files := make(map[string]int)
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		name, err := os.Readlink(fd)
		if err != nil || slices.Contains([]string{"anon_inode:[eventpoll]", "anon_inode:[eventfd]"}, name) {
			continue // err: of the listing itself
		}
		name, _, _ = strings.Cut(name, ":[")
		files[name]++
	}
	return files
}
