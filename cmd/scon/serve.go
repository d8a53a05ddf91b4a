package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

// newServeCommand returns the command that runs a service in the foreground.
func (t *tool) newServeCommand(which state.Service, use, short string) *cobra.Command {
	var s settings
	handOver, check := false, false
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u := t.unit(which)
			read := func() (service.Options, error) { return s.options(cmd, t, u) }
			o, err := read()
			switch {
			case err != nil && !check:
				return cli.BadSettings(err)
			case err != nil:
				return err
			case check:
				return within(o.Netns, func() error { return u.check(o, nil) })
			}
			return t.serve(u, o, handOver, read)
		},
	}
	s.addFlags(cmd)
	cmd.Flags().BoolVar(&check, "check", false, "check the settings as at a start, and end: the exit status is 1 if the service would refuse them")
	if which == state.Express {
		s.addDeviceFlags(cmd)
		cmd.Flags().BoolVar(&handOver, "hand-over", false, "at SIGTERM leave everything attached for the next daemon, which takes over")
	}
	return cmd
}

func (t *tool) newDaemonCommand() *cobra.Command {
	return t.newServeCommand(state.Express, "daemon", "Run express in the foreground, as systemd does")
}

func (t *tool) newStartupServeCommand() *cobra.Command {
	return t.newServeCommand(state.Startup, "serve", "Run the startup service in the foreground, as systemd does")
}

func (t *tool) newPipeServeCommand() *cobra.Command {
	return t.newServeCommand(state.Pipe, "serve", "Run the pipe's broker in the foreground, as systemd does")
}

// serve runs a service in this process. read reads its options again.
func (t *tool) serve(u unit, o service.Options, handOver bool, read func() (service.Options, error)) error {
	if err := u.require(); err != nil {
		return err
	}
	if err := t.enter(o.Netns); err != nil {
		return err
	}
	if err := u.check(o, nil); err != nil {
		return err
	}
	o.Logger = newLogger(t.stderr, o.Config.Log)
	o.Ready = func() { o.Logger.Info("ready", "socket", o.Socket, "netns", o.Netns, "version", o.Version) }
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if u.Service == state.Express {
		keeps := []os.Signal{syscall.SIGUSR1}
		if handOver {
			ends, keeps = ends[:1], append(keeps, ends[1])
		}
		handOverOn(o.Logger, keeps...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	var again atomic.Bool
	var checked []byte // settings to begin again with
	o.Reload = func() (func(), error) {
		next, err := read()
		if err == nil {
			err = u.check(next, &o.Config)
		}
		if err != nil {
			o.Logger.Warn("the settings are refused; the service goes on with the old ones", "error", err)
			return nil, err
		}
		if reflect.DeepEqual(u.settings(next.Config), u.settings(o.Config)) {
			return nil, nil
		}
		now, err := json.Marshal(next.Config)
		if err != nil {
			return nil, err
		}
		if u.Service == state.Express { // what is attached stays, as after handOverOn's signals
			return func() { o.Logger.Error("reload the settings", "error", t.executeAgain(now)) }, nil
		}
		return func() { checked = now; again.Store(true); stop() }, nil
	}
	if err := u.run(ctx, o); err != nil || !again.Load() {
		return err
	}
	return t.executeAgain(checked)
}

// executeAgain executes the program with the same command line in this process, which keeps
// its ID: for systemd and for containers the service goes on. It returns on error only. The
// settings are those that were checked, whatever their file holds by then.
func (t *tool) executeAgain(checked []byte) error {
	return t.execute(append(os.Environ(), enteredEnv+"=1", checkedEnv+"="+string(checked)))
}

func (t *tool) execute(environ []string) error {
	path, err := executable()
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", path, syscall.Exec(path, append([]string{"scon"}, t.args...), environ))
}

// enteredEnv marks a program that is in the namespace of --netns already.
const enteredEnv = "SCON_NETNS_ENTERED"

// checkedEnv has the settings of a service that begins again.
const checkedEnv = "SCON_CHECKED"

// enter moves the whole process into a network namespace: the calling thread enters
// it and executes the program again, so that all threads start there. It returns in
// the new program, on error, or at once for "".
func (t *tool) enter(namespace string) error {
	if os.Getenv(enteredEnv) != "" {
		return os.Unsetenv(enteredEnv)
	}
	if namespace == "" {
		return nil
	}
	runtime.LockOSThread() // for good: this thread ends here or as another program
	if err := netns.Enter(namespace); err != nil {
		return err
	}
	return fmt.Errorf("in namespace %q: %w", namespace, t.execute(append(os.Environ(), enteredEnv+"=1")))
}

func newLogger(w io.Writer, l config.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: l.Level}
	if l.Format == config.FormatJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
