package copier

import (
	"fmt"
	"testing"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// goesOver is a sender that has put 500 bytes more into its first ring, and after
// some reads of what it says goes over to a larger one and puts 1500 there.
type goesOver struct {
	reads int // until then
}

func (s *goesOver) say(before, after uint64) uint64 {
	if s.reads--; s.reads >= 0 {
		return before
	}
	return after
}

func (s *goesOver) head() uint64       { return s.say(1500, 3000) }
func (s *goesOver) generation() uint32 { return uint32(s.say(0, 1)) }
func (s *goesOver) switchAt() uint64   { return s.say(0, 1500) }

// A worker may lose its processor between any two reads of what a sender says,
// while that goes over to a larger ring: no byte of the one is taken from the other.
func TestSenderGoesOver(t *testing.T) {
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
					send:     ring{shared: first}, offered: from,
				}
				y.copied.Store(from)
				for own := (&goesOver{reads}); y.offered < 3000; {
					n, err := y.waitingIn(own)
					if err != nil {
						t.Fatal(err)
					}
					if end := y.offered + n; y.send.shared == first && end > 1500 || y.send.shared == second && (end > 3000 || y.send.start != 1500) {
						t.Fatalf("%d bytes from %d on in the ring from %d on", n, y.offered, y.send.start)
					}
					y.offered += n
					y.copied.Store(y.offered)
				}
			})
		}
	}
}
