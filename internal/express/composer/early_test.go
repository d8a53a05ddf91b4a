package composer

import (
	"log/slog"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Conntrack cannot be told of the end of a short connection: until it can, or for a second,
// its packets go regular and the programs know that there is an end to be told.
func TestEarlyEndUntold(t *testing.T) {
	for name, c := range map[string]struct {
		fails int // times
		want  uint8
	}{
		"once":   {1, conntrack.TCPTimeWait},
		"always": {mostTries + 1, conntrack.TCPEstablished},
	} {
		t.Run(name, func(t *testing.T) {
			b, ring := newComposing(t, 1), new(datapath.Spares)
			e := NewEarly(b.Composer, nil, slog.New(slog.DiscardHandler))
			e.closeWait, e.timeWait = time.Minute, 2*time.Minute
			now := time.Now()
			b.table.OpenEarly(b.all[0].Port, 2, ring, time.Second)
			b.table.RefillEarly(now)
			var sent, received *datapath.Half
			take := func() { // as a program does
				sent = &b.halves[0][ring.Slots[ring.Taken]]
				received = &b.halves[0][sent.Twin]
				ring.Taken++
				tuple := b.all[0].Tuple
				key := b.table.KeyOf(tuple, b.all[0].Port)
				back := b.table.KeyOf(tuple.Reverse(), 0)
				sent.Key.Addrs, sent.Key.Ports, sent.Key.Side = key.Addrs, key.Ports, key.Side
				received.Key.Addrs, received.Key.Ports, received.Key.Side = back.Addrs, back.Ports, back.Side
				for _, h := range []*datapath.Half{sent, received} {
					h.State, h.Locked, h.Proto.NoReply = datapath.SlotOpen, 0, datapath.Early|datapath.EarlyFIN
				}
			}
			take()
			closed, err := conntrack.Open()
			if err != nil {
				t.Fatal(err)
			}
			closed.Close()
			b.Composer.ct = closed
			for i := range c.fails {
				if i < mostTries && sent.Proto.NoReply&datapath.EarlyFIN == 0 {
					t.Fatalf("given up after %d times", i)
				}
				e.Sweep(now)
				if sent.State != datapath.SlotClosed || received.State != datapath.SlotClosed {
					t.Fatal("packets go express")
				}
			}
			b.Composer.ct = b.ct
			e.Sweep(now)
			if sent.Proto.NoReply != 0 || received.Proto.NoReply != 0 {
				t.Error("the end is still to be told")
			}
			conn, err := b.ct.Get(b.all[0].Tuple)
			if err != nil {
				t.Fatal(err)
			}
			if conn.TCPState != c.want {
				t.Errorf("conntrack has state %d, want %d", conn.TCPState, c.want)
			}
		})
	}
}
