package scontest

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express"
)

// entered is set in the environment of a process that has entered its network
// namespace.
const entered = "SCON_TEST_ENTERED"

// RunDaemon does what tests need of "scon daemon" whose binary is started as
// that command.
func RunDaemon(args []string) error {
	flags := flag.NewFlagSet("daemon", flag.ContinueOnError)
	o := express.Options{Config: config.Default(), Logger: slog.New(slog.DiscardHandler), Version: "test"}
	flags.StringVar(&o.Netns, "netns", "", "")
	flags.StringVar(&o.Socket, "socket", "", "")
	flags.StringVar(&o.StateDir, "state-dir", "", "")
	flags.String("config", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Getenv(entered) == "" {
		nsenter, err := exec.LookPath("nsenter")
		if err != nil {
			return err
		}
		argv := append([]string{"nsenter", "--net=" + o.Netns, "/proc/self/exe", "daemon"}, args...)
		if argv[2], err = os.Executable(); err != nil {
			return err
		}
		return syscall.Exec(nsenter, argv, append(os.Environ(), entered+"=1"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return express.Run(ctx, o, nil)
}
