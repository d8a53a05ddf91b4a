package faults

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/scontest"
)

// Killing the daemon at any time, also during its start, breaks no connection and
// neither loses nor reorders packets. The programs are inert a second later; the next
// daemon adopts the Conentries.
func TestKill(t *testing.T) {
	t.Parallel()
	const kills, checks = 100, 10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	b := newExpress(t, scontest.Layout{Containers: 2})
	all := []*scontest.Traffic{
		b.TrafficOver(b.Incoming("tcp", 1), b.Outgoing("udp", 1)),
		b.TrafficOver(b.Outgoing("tcp", 2), b.Incoming("udp", 2)),
	}
	for kill := range kills {
		if kill%(kills/checks) == 0 {
			killAndAdopt(b, all)
			continue
		}
		// Three of four daemons are killed during their start, which takes about 100 ms.
		most := 150
		if kill%4 == 0 {
			most = 800
		}
		time.Sleep(time.Duration(random.IntN(most)) * time.Millisecond)
		b.Daemon.Kill()
		b.Daemon = b.Launch(b.Task())
	}
	b.Daemon.Kill()
	b.Up()
	for _, f := range all {
		f.WaitExpress()
		f.Proceed()
		f.WantUnbroken()
	}
	b.WantNoInvalid()
}

// killAndAdopt kills the daemon while all traffic is express, and starts the
// next one when the programs are inert.
func killAndAdopt(b *scontest.Bed, all []*scontest.Traffic) {
	b.T.Helper()
	b.Daemon.Kill()
	b.Up()
	connections := make([]*scontest.Connection, 0, 2*len(all))
	for _, f := range all {
		f.WaitExpress()
		connections = append(connections, f.Stream.C, f.Datagrams)
	}
	b.Daemon.Kill()
	time.Sleep(scontest.Heartbeat)
	dead := b.ExpressPackets()
	for _, f := range all {
		f.Proceed()
	}
	if now := b.ExpressPackets(); now != dead {
		b.T.Errorf("%d packets went express without a daemon", now-dead)
	}
	b.Up()
	var kept uint64
	for _, c := range connections {
		f, err := c.Flow()
		if err != nil {
			b.T.Errorf("the Conentry was not adopted: %v", err)
		}
		kept += f.ExpressPackets[0] + f.ExpressPackets[1]
	}
	if kept < dead {
		b.T.Errorf("the Conentries have counted %d packets, before the restart %d", kept, dead)
	}
	for _, f := range all {
		f.WaitExpress()
	}
}
