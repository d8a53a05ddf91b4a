package copier

import (
	"fmt"
	"testing"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// switchingSender has put 500 more bytes into its first ring. After some reads of its
// counters it switches to a larger ring and puts 1500 bytes there.
type switchingSender struct {
	reads int // before the switch
}

func (s *switchingSender) value(before, after uint64) uint64 {
	if s.reads--; s.reads >= 0 {
		return before
	}
	return after
}

func (s *switchingSender) head() uint64       { return s.value(1500, 3000) }
func (s *switchingSender) generation() uint32 { return uint32(s.value(0, 1)) }
func (s *switchingSender) switchAt() uint64   { return s.value(0, 1500) }

// A worker may be preempted between any two reads of a sender's counters while the sender
// switches to a larger ring. Each byte is still read from the ring that it was written to.
func TestSenderSwitchesRings(t *testing.T) {
	for reads := range 6 {
		for _, from := range []uint64{1000, 1500} {
			t.Run(fmt.Sprintf("after %d reads, from %d", reads, from), func(t *testing.T) {
				q, err := newQueues("")
				if err != nil {
					t.Fatal(err)
				}
				defer q.close()
				first, second := &shared{size: engine.SmallestRing}, &shared{size: 4 * engine.SmallestRing}
				y := &direction{
					carriage: &carriage{worker: &worker{stack: newSoftware(q)}},
					from:     &memory{send: []*shared{first, second}},
					send:     ring{shared: first}, submitted: from,
				}
				y.copied.Store(from)
				for own := (&switchingSender{reads}); y.submitted < 3000; {
					n, err := y.waitingIn(own)
					if err != nil {
						t.Fatal(err)
					}
					if end := y.submitted + n; y.send.shared == first && end > 1500 || y.send.shared == second && (end > 3000 || y.send.start != 1500) {
						t.Fatalf("%d bytes from %d on in the ring from %d on", n, y.submitted, y.send.start)
					}
					y.submitted += n
					y.copied.Store(y.submitted)
				}
			})
		}
	}
}
