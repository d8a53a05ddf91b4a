package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const stopping = daemon.SdNotifyStopping

// notify notifies systemd, if systemd started the service.
func notify(word string) { _, _ = daemon.SdNotify(false, word) }

// longestReload is how long a service may take from one that ends to the next that is ready:
// as long as the units let it take to stop. Nobody beats meanwhile.
const longestReload = 5 * time.Minute

// notifyReloading notifies systemd that the service is replaced by one that will be ready.
func notifyReloading() {
	notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec() + "\n" + watchdogLimit(longestReload))
}

// notifyReady notifies systemd that the service is ready, and beats from now on.
func notifyReady() {
	word := daemon.SdNotifyReady
	if limit, err := daemon.SdWatchdogEnabled(false); err == nil && limit > 0 {
		word += "\n" + watchdogLimit(limit) // a reload has made it longer
	}
	notify(word)
}

// watchdogLimit sets the time within which the next beat has to come.
func watchdogLimit(d time.Duration) string { return fmt.Sprintf("WATCHDOG_USEC=%d", d.Microseconds()) }

// Watchdog notifies systemd that the service works. Systemd restarts a service without a
// notification within WatchdogSec.
type Watchdog struct {
	every time.Duration // 0 without a watchdog
	last  time.Time
}

// NewWatchdog returns the watchdog that the process' environment configures.
func NewWatchdog() *Watchdog {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		limit = 0
	}
	return &Watchdog{every: limit / 4}
}

// Beat is called in the service's loop. It notifies systemd no more often than needed.
func (w *Watchdog) Beat(now time.Time) {
	if w.every == 0 || now.Sub(w.last) < w.every {
		return
	}
	w.last = now
	notify(daemon.SdNotifyWatchdog)
}

// Probe notifies systemd as long as check succeeds and all loops beat, until ctx ends.
// check takes the locks that a hung service would hold. It opens no file, so a service
// whose files are used up is not restarted for it.
func (w *Watchdog) Probe(ctx context.Context, check func() error, loops ...*Pulse) {
	if w.every == 0 {
		return
	}
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		if check() == nil && beating(loops) {
			notify(daemon.SdNotifyWatchdog)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// beating reports whether all loops work.
func beating(loops []*Pulse) bool {
	return !slices.ContainsFunc(loops, (*Pulse).silent)
}
