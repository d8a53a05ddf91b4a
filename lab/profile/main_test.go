package profile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/nstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

// TestMain runs the test's executable as a traffic peer or a daemon when a stage
// starts it as one, or as a process that watches a container until it is killed.
func TestMain(m *testing.M) {
	args := os.Args[1:]
	switch {
	case slices.Equal(args, []string{"bench", "peer"}):
		peer.Main(os.Stdin, os.Stdout)
	case len(args) > 0 && args[0] == "daemon":
		exitWith(scontest.RunDaemon(args[1:]))
	case len(args) > 0 && args[0] == "watch":
		exitWith(netns.Do(args[1], func() error {
			_, err := Live(context.Background(), LiveOptions{Container: args[2], Duration: time.Minute, Progress: quiet{}})
			return err
		}))
	}
	done := nstest.AsSCON()
	status := scontest.Main(m, nil)
	done()
	os.Exit(status)
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// quiet is a progress that discards its reports.
type quiet struct{}

func (quiet) Step(int, int, string) {}
func (quiet) Done()                 {}

// needWaypoints skips a test if the kernel does not support waypoints.
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
