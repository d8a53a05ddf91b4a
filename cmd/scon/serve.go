package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
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
			o, err := s.options(cmd, t, u)
			if err != nil {
				return err
			}
			if check {
				return within(o.Netns, func() error { return u.check(o) })
			}
			return t.serve(u, o, handOver)
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

// serve runs a service in this process.
func (t *tool) serve(u unit, o service.Options, handOver bool) error {
	if err := u.require(); err != nil {
		return err
	}
	if err := enter(o.Netns, t.args); err != nil {
		return err
	}
	if err := u.check(o); err != nil {
		return err
	}
	o.Logger = newLogger(t.stderr, o.Config.Log)
	o.Ready = func() { o.Logger.Info("ready", "socket", o.Socket, "netns", o.Netns, "version", o.Version) }
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if u.Service == state.Express {
		o.Page = daemonPage(o)
		keeps := []os.Signal{syscall.SIGUSR1}
		if handOver {
			ends, keeps = ends[:1], append(keeps, ends[1])
		}
		handOverOn(o.Logger, keeps...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	return u.run(ctx, o)
}

// enteredEnv marks the program that enter started: it is in the namespace already.
const enteredEnv = "SCON_NETNS_ENTERED"

// enter moves the whole process into a network namespace: the calling thread enters
// it and executes the program again, so that all threads start there. It returns in
// the new program, on error, or at once for "".
func enter(namespace string, args []string) error {
	if namespace == "" {
		return nil
	}
	if os.Getenv(enteredEnv) != "" {
		return os.Unsetenv(enteredEnv)
	}
	runtime.LockOSThread() // for good: this thread ends here or as another program
	if err := netns.Enter(namespace); err != nil {
		return err
	}
	path, err := executable()
	if err != nil {
		return err
	}
	err = syscall.Exec(path, append([]string{"scon"}, args...), append(os.Environ(), enteredEnv+"=1"))
	return fmt.Errorf("start %s in namespace %q: %w", path, namespace, err)
}

func newLogger(w io.Writer, l config.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: l.Level}
	if l.Format == config.FormatJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
