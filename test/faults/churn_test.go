package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Hundreds of containers that start and stop within a minute are hooked, have express
// connections, and leave no hook, pin, slot, file descriptor or memory behind. Traffic
// of other containers continues throughout.
func TestContainersComeAndGo(t *testing.T) {
	t.Parallel()
	const pace = time.Minute / 300
	starts := long(100, 600)
	b := newExpress(t, scontest.Layout{Offload: true})
	f := b.StartTraffic()
	f.WaitExpress()

	pause := time.NewTicker(pace)
	defer pause.Stop()
	var held map[string]int
	var resident int64
	var living []*container
	express := 0
	for i := range starts {
		<-pause.C
		if i == starts/5 { // by now everything that is cached for later containers exists
			living = stopAll(living)
			held, resident = quiet(b), b.Daemon.Resident()
		}
		c := startContainer(b)
		living = append(living, c)
		if len(living) > 5 {
			living[0].stop()
			living = living[1:]
		}
		if i%10 == 0 {
			p := openPairsIn(b, c.name, 2)
			scontest.Eventually(t, "its connections go express", func() error {
				p.pass(t)
				return p.want(b, 2, 2)
			})
			p.close() // an open socket keeps the namespace alive
			express++
		}
	}
	stopAll(living)
	wantHeld(b, quiet, held)
	t.Logf("%d starts, %d of them used; %d MB resident, before %d", starts, express, b.Daemon.Resident()>>20, resident>>20)
	if now := b.Daemon.Resident(); now > resident+4<<20 {
		t.Errorf("the daemon uses %d MB, before %d", now>>20, resident>>20)
	}
	f.WaitExpress()
	f.WantUnbroken()
	b.WantNoInvalid()
}

// stopAll stops containers.
func stopAll(all []*container) []*container {
	for _, c := range all {
		c.stop()
	}
	return nil
}

// quiet waits until only the lab's own container is hooked, and counts the
// daemon's file descriptors, pins and map entries.
func quiet(b *scontest.Bed) map[string]int {
	b.T.Helper()
	scontest.Eventually(b.T, "only the lab's container is hooked", func() error {
		s := b.Status()
		if len(s.Containers) != 1 || s.Containers[0].Dev != lab.Port(1) || len(s.Hooks) != 4 {
			return fmt.Errorf("containers %+v, hooks %+v", s.Containers, s.Hooks)
		}
		return nil
	})
	held := files(b)
	held["pins"] = len(b.Pins("*"))
	held["devices"] = devices(b)
	return held
}

// devices counts the entries of the map of devices.
func devices(b *scontest.Bed) (n int) {
	b.T.Helper()
	var index uint32
	var device []byte
	all := b.Pinned("devices").Iterate()
	for all.Next(&index, &device) {
		if slices.ContainsFunc(device, func(b byte) bool { return b != 0 }) {
			n++
		}
	}
	if err := all.Err(); err != nil {
		b.T.Fatal(err)
	}
	return n
}
