package rules

import (
	"iter"
	"slices"
	"sort"
)

// list is elements in their order, in pieces that are not changed: after a change, a list
// shares those with the earlier one that the change did not touch. The zero value is empty.
type list struct {
	pieces [][]element
	starts []int // the place of each piece's first element
	highs  int   // elements that are ranges
}

// Pieces have about pieceLength elements, and are joined with their neighbour from fewer than
// shortPiece on.
const (
	pieceLength = 256
	shortPiece  = 64
)

// listOf returns a list of elements that are in order.
func listOf(all []element) (l list) {
	l.add(all)
	for i := range all {
		l.countHigh(&all[i], 1)
	}
	return l
}

func (l *list) len() int {
	if len(l.pieces) == 0 {
		return 0
	}
	last := len(l.pieces) - 1
	return l.starts[last] + len(l.pieces[last])
}

func (l *list) at(i int) *element {
	p := sort.SearchInts(l.starts, i+1) - 1
	return &l.pieces[p][i-l.starts[p]]
}

// each yields all elements.
func (l *list) each() iter.Seq[*element] {
	return func(yield func(*element) bool) {
		for _, piece := range l.pieces {
			for i := range piece {
				if !yield(&piece[i]) {
					return
				}
			}
		}
	}
}

// find returns the element that compares equal to e, nil if there is none.
func (l *list) find(e *element) *element {
	at, is := sort.Find(l.len(), func(i int) int { return e.compare(l.at(i)) })
	if !is {
		return nil
	}
	return l.at(at)
}

// changed returns the list after changes, which are in order, one of an element.
func (l *list) changed(changes []elementChange) list {
	next := list{highs: l.highs}
	pieces := l.pieces
	if len(pieces) == 0 {
		pieces = [][]element{nil}
	}
	for i, piece := range pieces {
		n := len(changes)
		if i+1 < len(pieces) {
			n = sort.Search(n, func(j int) bool { return changes[j].compare(&pieces[i+1][0]) >= 0 })
		}
		next.add(next.merge(piece, changes[:n]))
		changes = changes[n:]
	}
	return next
}

// merge returns a piece after changes.
func (l *list) merge(old []element, changes []elementChange) []element {
	if len(changes) == 0 {
		return old
	}
	merged := make([]element, 0, len(old)+len(changes))
	for i := range changes {
		c := &changes[i]
		at, is := sort.Find(len(old), func(i int) int { return c.compare(&old[i]) })
		merged, old = append(merged, old[:at]...), old[at:]
		if is {
			l.countHigh(&old[0], -1)
			old = old[1:]
		}
		if !c.gone {
			l.countHigh(&c.element, 1)
			merged = append(merged, c.element)
		}
	}
	return append(merged, old...)
}

func (l *list) countHigh(e *element, by int) {
	if e.high != nil {
		l.highs += by
	}
}

// add appends elements.
func (l *list) add(all []element) {
	if last := len(l.pieces) - 1; last >= 0 && (len(all) < shortPiece || len(l.pieces[last]) < shortPiece) {
		all = slices.Concat(l.pieces[last], all)
		l.pieces, l.starts = l.pieces[:last], l.starts[:last]
	}
	for len(all) > 0 {
		n := len(all)
		if n > 2*pieceLength {
			n = pieceLength
		}
		l.starts = append(l.starts, l.len())
		l.pieces = append(l.pieces, all[:n:n])
		all = all[n:]
	}
}
