package profile

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/bench/peer"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/daemon"
	"github.com/scon-project/scon/internal/netns"
	"github.com/scon-project/scon/internal/scontest"
)

// TestMain lets the test's program be what a stage starts: a traffic peer, or
// the daemon; or somebody who watches a container until he is killed.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch {
	case slices.Equal(args, []string{"bench", "peer"}):
		peer.Main(os.Stdin, os.Stdout)
	case len(args) > 0 && args[0] == "daemon":
		exitWith(runDaemon(args[1:]))
	case len(args) > 0 && args[0] == "watch":
		exitWith(netns.Do(args[1], func() error {
			_, err := Live(context.Background(), LiveOptions{Container: args[2], Duration: time.Minute, Progress: quiet{}})
			return err
		}))
	}
	os.Exit(scontest.Main(m, nil))
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// entered says that the process is in its network namespace.
const entered = "SCON_TEST_ENTERED"

// runDaemon is "scon daemon", as far as a stage needs it.
func runDaemon(args []string) error {
	flags := flag.NewFlagSet("daemon", flag.ContinueOnError)
	o := daemon.Options{Config: config.Default(), Logger: slog.New(slog.DiscardHandler), Version: "test"}
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
	return daemon.Run(ctx, o)
}

// quiet is a progress that nobody sees.
type quiet struct{}

func (quiet) Step(int, int, string) {}
func (quiet) Done()                 {}

// needWaypoints skips a test where the kernel has none to offer.
func needWaypoints(t *testing.T) {
	t.Helper()
	w, err := load(loading{})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
