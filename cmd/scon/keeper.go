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
	// departure is how long a service may take to end after its keeper was asked to.
	departure = 45 * time.Second
	// leavingPoll is how often it is looked for.
	leavingPoll = 200 * time.Millisecond
)

// onceLeft waits for SIGTERM, and then until remove no longer says that a service runs. It
// reports whether the service has left.
func onceLeft(remove func() error) (left bool, err error) {
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	<-asked.Done()
	stop() // the next one ends the process
	for end := time.Now().Add(departure); ; time.Sleep(leavingPoll) {
		err := remove()
		if !errors.Is(err, state.ErrLocked) {
			return err == nil, err
		}
		if time.Now().After(end) {
			return false, nil
		}
	}
}

// downOnTerm waits for SIGTERM, then until no daemon runs in the network namespace, and
// removes what the last one left. A daemon that goes on keeps everything.
func (t *tool) downOnTerm(o downOptions) error {
	u := t.unit(state.Express)
	options := service.Options{StateDir: o.dir, Netns: o.netns, Logger: slog.New(slog.DiscardHandler), Version: version()}
	left, err := onceLeft(func() error {
		return within(o.netns, func() error { return u.clean(options) })
	})
	if err != nil {
		return err
	}
	result := "A daemon is running: it keeps everything."
	if left {
		result = "Nothing of SCON is left."
	}
	_, err = fmt.Fprintln(t.stdout, result)
	return err
}
