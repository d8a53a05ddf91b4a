package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"go.uber.org/goleak"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/daemon"
)

// childEnv holds the task of a process that is no test, but a daemon.
const childEnv = "SCON_TEST_CHILD"

// task is what a child does.
type task struct {
	Config   config.Config
	StateDir string
	Socket   string
	Clean    bool // clean up after a daemon that died
	Clsact   bool // hook by clsact
}

// readyWord is what a child prints when its socket answers.
const readyWord = "ready\n"

// child does a task and returns the process's exit status. It ends when its
// standard input does, as it does with the test.
func child(spec string) int {
	var task task
	if err := json.Unmarshal([]byte(spec), &task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := task.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (t task) run(ctx context.Context) error {
	o := daemon.Options{
		Config:   t.Config,
		StateDir: t.StateDir,
		Socket:   t.Socket,
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Version:  "test",
		Ready:    func() { fmt.Print(readyWord) },
	}
	if t.Clean {
		return daemon.Clean(o)
	}
	if t.Clsact {
		daemon.ForceClsact()
	}
	others := goleak.IgnoreCurrent()
	before := openFiles()
	if err := daemon.Run(ctx, o); err != nil {
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
