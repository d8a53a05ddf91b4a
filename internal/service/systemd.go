package service

import (
	"context"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	ready    = daemon.SdNotifyReady
	stopping = daemon.SdNotifyStopping
)

// notify tells systemd. A service that systemd did not start has nobody to tell.
func notify(word string) { _, _ = daemon.SdNotify(false, word) }

// Watchdog tells systemd that the service does its work. Systemd restarts a
// service that has not been heard of for WatchdogSec.
type Watchdog struct {
	every time.Duration // 0 if systemd does not wait for it
	last  time.Time
}

// NewWatchdog makes the watchdog that the process's environment asks for.
func NewWatchdog() *Watchdog {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		limit = 0
	}
	return &Watchdog{every: limit / 4}
}

// Beat is called where the service would hang if it did. It tells systemd no more
// often than is needed.
func (w *Watchdog) Beat(now time.Time) {
	if w.every == 0 || now.Sub(w.last) < w.every {
		return
	}
	w.last = now
	notify(daemon.SdNotifyWatchdog)
}

// Probe beats as long as a look at the service succeeds, until ctx ends. It is
// for services without a loop: look asks the service over its socket.
func (w *Watchdog) Probe(ctx context.Context, look func() error) {
	if w.every == 0 {
		return
	}
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		if look() == nil {
			w.Beat(time.Now())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
