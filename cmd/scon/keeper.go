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

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

// In Kubernetes nothing tells the end of a pod that is replaced from that of one that is
// removed. So the daemon's pod leaves everything to the next (--hand-over), and another
// pod, the keeper (--on-term), removes it when the chart is uninstalled: both get SIGTERM
// then. In a rolling update the next keeper is there before the last one ends.

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

// leavingPoll is how often a keeper looks whether a service has left.
const leavingPoll = 200 * time.Millisecond

// outcome is how a keeper ends.
type outcome int

const (
	removed   outcome = iota
	running           // the service goes on
	succeeded         // another keeper goes on
)

// keep waits for SIGTERM, and then until remove no longer says that a service runs, for
// at most patience. Keepers of one directory share a lock on it: the last one removes.
func keep(dir string, patience time.Duration, remove func() error) (outcome, error) {
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	d, err := os.Open(dir)
	if err != nil {
		return running, err
	}
	defer d.Close()
	// One that removes has the lock alone.
	for asked.Err() == nil {
		err := unix.Flock(int(d.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return running, fmt.Errorf("lock %s: %w", dir, err)
		}
		time.Sleep(leavingPoll)
	}
	<-asked.Done()
	stop() // the next one ends the process
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return succeeded, nil
	} else if err != nil {
		return running, fmt.Errorf("lock %s: %w", dir, err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(leavingPoll) {
		err := remove()
		if !errors.Is(err, state.ErrLocked) {
			return removed, err
		}
		if time.Now().After(end) {
			return running, nil
		}
	}
}

// daemonLeaves is how long a daemon may take to end after its keeper was asked to.
const daemonLeaves = 45 * time.Second

// downOnTerm waits for SIGTERM, then until no daemon runs in the network namespace, and
// removes what the last one left. A daemon that goes on keeps everything.
func (t *tool) downOnTerm(o downOptions) error {
	u := t.unit(state.Express)
	options := service.Options{StateDir: o.dir, Netns: o.netns, Logger: slog.New(slog.DiscardHandler), Version: version()}
	end, err := keep(express.BPFFS, daemonLeaves, func() error {
		return within(o.netns, func() error { return u.clean(options) })
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(t.stdout, map[outcome]string{
		removed:   "Nothing of SCON is left.",
		running:   "A daemon is running: it keeps everything.",
		succeeded: "Another keeper goes on: everything stays.",
	}[end])
	return err
}
