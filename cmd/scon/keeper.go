package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

// In Kubernetes nothing tells the end of a pod that is replaced from that of one that is
// removed. So the daemon's pod leaves everything to the next (--hand-over), and a pod
// that no rollout replaces removes it (--on-term) when the chart is uninstalled: both get
// SIGTERM then.

// handOverOn ends the process as a crash does when it gets one of the signals.
func handOverOn(log *slog.Logger, signals ...os.Signal) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, signals...)
	go func() {
		<-got
		log.Info("handing over: what is attached stays for the next daemon")
		os.Exit(0)
	}()
}

const (
	// departure is how long a daemon may take to end after down --on-term was asked to.
	departure = 45 * time.Second
	// leavingPoll is how often it is looked for.
	leavingPoll = 200 * time.Millisecond
)

// downOnTerm waits for SIGTERM, then until no daemon runs in the network namespace, and
// removes what the last one left. A daemon that goes on keeps everything.
func (t *tool) downOnTerm(o downOptions) error {
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	<-asked.Done()
	stop() // the next one ends the process
	u := t.unit(state.Express)
	options := service.Options{StateDir: o.dir, Netns: o.netns, Logger: slog.New(slog.DiscardHandler), Version: version()}
	for end := time.Now().Add(departure); ; time.Sleep(leavingPoll) {
		err := within(o.netns, func() error { return u.clean(options) })
		switch {
		case err == nil:
			_, err = fmt.Fprintln(t.stdout, "Nothing of SCON is left.")
			return err
		case !errors.Is(err, state.ErrLocked):
			return err
		case time.Now().After(end):
			_, err = fmt.Fprintln(t.stdout, "A daemon is running: it keeps everything.")
			return err
		}
	}
}
