package rules

import (
	"math/rand/v2"
	"testing"
)

// However the elements of a set change in a transaction, what has changed is found as by
// comparing all of them.
func TestDelta(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	element := func() element {
		e := element{low: []byte{byte(random.IntN(40))}, data: []byte{byte(random.IntN(2))}}
		if random.IntN(4) == 0 {
			e.high = []byte{e.low[0] + byte(random.IntN(2))}
		}
		return e
	}
	for range 2000 {
		s := &set{in: &table{nftables: new(nftables)}, key: 1}
		change := func(n int) {
			for range n {
				s.changes = append(s.changes, elementChange{element(), random.IntN(3) == 0})
			}
			s.settle()
		}
		change(random.IntN(40))
		before := *s
		s.since = &before
		for range random.IntN(4) {
			change(random.IntN(6))
		}
		got, ok := s.delta(&before)
		s.since = nil
		want, known := s.delta(&before)
		if !ok || !known || len(got.elements) != len(want.elements) {
			t.Fatalf("%v %+v, want %v %+v", ok, got.elements, known, want.elements)
		}
		for i := range got.elements {
			if !got.elements[i].equal(&want.elements[i]) {
				t.Fatalf("%+v, want %+v", got.elements, want.elements)
			}
		}
		for i := 1; i < len(s.elements); i++ {
			if s.elements[i-1].compare(&s.elements[i]) >= 0 {
				t.Fatalf("not in order: %+v", s.elements)
			}
		}
	}
}
