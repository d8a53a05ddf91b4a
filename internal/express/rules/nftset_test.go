package rules

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// However the elements of a set change in a transaction, the set has those that it should
// have, in order, and its earlier copy has what it had; what has changed is found as by
// comparing all of them.
func TestDelta(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		keys := 1 + random.IntN(3000)
		want := make(map[string]element)
		s := &set{in: &table{nftables: new(nftables)}, key: 2}
		change := func(n, gone int) {
			for range n {
				low := uint16(random.IntN(keys))
				e := element{low: binary.BigEndian.AppendUint16(nil, low), data: []byte{byte(random.IntN(2))}}
				if low%5 == 0 {
					e.high = e.low
				}
				isGone := random.IntN(10) < gone
				s.changes = append(s.changes, elementChange{e, isGone})
				want[string(e.low)] = e
				if isGone {
					delete(want, string(e.low))
				}
			}
			s.settle()
			wantElements(t, s, want)
		}
		change(random.IntN(4000), random.IntN(10))
		change(random.IntN(4000), random.IntN(10))
		before := *s
		had := slices.Concat(s.elements.pieces...)
		s.since = &before
		for range random.IntN(4) {
			change(random.IntN(30), random.IntN(10))
		}
		found, ok := s.delta(&before)
		s.since = nil
		all, known := s.delta(&before)
		same := func(a, b element) bool { return a.equal(&b) }
		if x, y := slices.Concat(found.elements.pieces...), slices.Concat(all.elements.pieces...); !ok || !known || !slices.EqualFunc(x, y, same) {
			t.Fatalf("%v %+v, want %v %+v", ok, x, known, y)
		}
		if !slices.EqualFunc(slices.Concat(before.elements.pieces...), had, same) {
			t.Fatal("the earlier copy has changed")
		}
	}
}

// wantElements checks the elements of a set, and how they are kept.
func wantElements(t *testing.T, s *set, want map[string]element) {
	t.Helper()
	l, highs, i := &s.elements, 0, 0
	for e := range l.each() {
		w, ok := want[string(e.low)]
		if !ok || !e.equal(&w) || l.at(i) != e || l.find(e) != e || i > 0 && l.at(i-1).compare(e) >= 0 {
			t.Fatalf("element %d of %d is %+v, want %+v", i, l.len(), e, w)
		}
		if e.high != nil {
			highs++
		}
		i++
	}
	if i != len(want) || l.len() != i || l.highs != highs || s.in.elements != i {
		t.Fatalf("%d elements, %d counted, %d in the table, %d of %d ranges; want %d", i, l.len(), s.in.elements, l.highs, highs, len(want))
	}
	for p, piece := range l.pieces {
		if len(piece) > 2*pieceLength || len(l.pieces) > 1 && len(piece) < shortPiece && p+1 < len(l.pieces) {
			t.Fatalf("piece %d of %d has %d elements", p, len(l.pieces), len(piece))
		}
	}
}
