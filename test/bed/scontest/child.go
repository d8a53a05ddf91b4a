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

// childEnv is the environment variable with the task of a process that runs a
// daemon instead of tests.
const childEnv = "SCON_TEST_CHILD"

// Main runs the tests of a package, or the task of a child process. forceClsact
// makes its daemon attach by clsact; it is nil where no Layout needs that.
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

// Task describes the work of a child process.
type Task struct {
	Service  state.Service // "": express
	Config   config.Config
	StateDir string
	Socket   string
	Clean    bool // clean up after a daemon that died
	Clsact   bool // attach by clsact
	// PageSlots is how many slots of each page of the table are used; 0 for all.
	PageSlots int
	// SCON is the path of the command scon, which carries out the task. "": the
	// test binary does.
	SCON string
}

// command returns the command line that carries out a task, and the variables to
// add to the environment. Files go into dir.
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

// child carries out a task and returns the process's exit status.
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
	express.PageSlots = task.PageSlots
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
	run := func(ctx context.Context, o service.Options) error { return express.Run(ctx, o, nil) }
	clean := express.Clean
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

// openFiles counts the targets of the open file descriptors. It leaves out the log
// and those of Go's poller, which opens them on first use.
func openFiles() map[string]int {
	files := make(map[string]int)
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		name, err := os.Readlink(fd)
		if err != nil || slices.Contains([]string{"anon_inode:[eventpoll]", "anon_inode:[eventfd]"}, name) {
			continue // err: the descriptor of the listing itself
		}
		name, _, _ = strings.Cut(name, ":[")
		files[name]++
	}
	return files
}
