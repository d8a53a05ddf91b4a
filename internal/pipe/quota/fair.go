package quota

import (
	"slices"
	"sync"
	"time"
)

// Queue holds values of several owners. Pop serves the owners round-robin, and each owner's
// values in the order of Push. The zero value is empty.
type Queue[T any] struct {
	order []Account // accounts with values, the next one first
	of    map[Account][]T
	count int
}

// Len returns the number of values.
func (q *Queue[T]) Len() int { return q.count }

// Push adds a value.
func (q *Queue[T]) Push(o Owner, v T) {
	if q.of == nil {
		q.of = make(map[Account][]T)
	}
	a := o.Account()
	if len(q.of[a]) == 0 {
		q.order = append(q.order, a)
	}
	q.of[a] = append(q.of[a], v)
	q.count++
}

// Next returns the value that Pop would take; false: the queue is empty.
func (q *Queue[T]) Next() (v T, ok bool) {
	if q.count == 0 {
		return v, false
	}
	return q.of[q.order[0]][0], true
}

// Pop removes and returns the next value; false: the queue is empty.
func (q *Queue[T]) Pop() (v T, ok bool) { return q.popIf(func(Account) bool { return true }) }

// popIf is Pop among the owners that may accepts; the others keep their positions.
func (q *Queue[T]) popIf(may func(Account) bool) (v T, ok bool) {
	for i, a := range q.order {
		if !may(a) {
			continue
		}
		q.order = append(q.order[:i:i], q.order[i+1:]...)
		v = q.of[a][0]
		if q.of[a] = q.of[a][1:]; len(q.of[a]) > 0 {
			q.order = append(q.order, a)
		} else {
			delete(q.of, a)
		}
		q.count--
		return v, true
	}
	return v, false
}

// Remove removes a value of an owner, if it is there.
func (q *Queue[T]) Remove(o Owner, is func(T) bool) {
	a := o.Account()
	i := slices.IndexFunc(q.of[a], is)
	if i < 0 {
		return
	}
	q.count--
	if q.of[a] = slices.Delete(q.of[a], i, i+1); len(q.of[a]) == 0 {
		delete(q.of, a)
		q.order = slices.DeleteFunc(q.order, func(b Account) bool { return b == a })
	}
}

// Yield makes room for a value of an owner: it removes the newest value of the owner with the
// most values, if that owner then still has more than to has now; false: it does not.
func (q *Queue[T]) Yield(to Owner) (v T, ok bool) {
	var most Account
	for _, a := range q.order {
		if len(q.of[a]) > len(q.of[most]) {
			most = a
		}
	}
	all := q.of[most]
	if len(all) < len(q.of[to.Account()])+2 {
		return v, false
	}
	v = all[len(all)-1]
	q.of[most] = all[:len(all)-1] // at least one is left
	q.count--
	return v, true
}

// Each calls fn for each value.
func (q *Queue[T]) Each(fn func(T)) {
	for _, a := range q.order {
		for _, v := range q.of[a] {
			fn(v)
		}
	}
}

// Clear removes all values.
func (q *Queue[T]) Clear() { *q = Queue[T]{} }

// Gate bounds the number of concurrent calls. An owner may have half of those that the other
// owners have left, so that calls that never return do not block other owners. Waiting owners
// are admitted round-robin.
type Gate struct {
	most int

	mu      sync.Mutex      // guards the fields below
	all     int             // calls in progress
	of      map[Account]int // of them, by account
	waiting Queue[*ticket]
}

type ticket struct {
	owner Owner
	admit func() // called with the gate's lock held
}

// NewGate returns a gate for at most that many concurrent calls.
func NewGate(most int) *Gate { return &Gate{most: most, of: make(map[Account]int)} }

// hasRoom reports whether an account may have another call in progress. The lock is held.
func (g *Gate) hasRoom(a Account) bool {
	own := g.of[a]
	return own < max(1, (g.most-(g.all-own))/2)
}

// Enter waits until a call of the owner is admitted; false: the deadline has passed. After
// true, the caller has to call Leave at the end of the call.
func (g *Gate) Enter(o Owner, deadline time.Time) bool {
	open := make(chan struct{})
	t := g.push(o, func() { close(open) })
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case <-open:
		return true
	case <-late.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-open: // admitted meanwhile
		return true
	default:
		g.remove(t)
		return false
	}
}

// Start calls fn, which must not block, once a call of the owner is admitted. Leave has to be
// called at the end of the call. cancel takes back a call that is not admitted yet.
func (g *Gate) Start(o Owner, fn func()) (cancel func()) {
	t := g.push(o, fn)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.remove(t)
	}
}

// remove takes a ticket out, if it waits. The lock is held.
func (g *Gate) remove(t *ticket) {
	g.waiting.Remove(t.owner, func(other *ticket) bool { return other == t })
}

// push adds a ticket, and admits what there is room for.
func (g *Gate) push(o Owner, admit func()) *ticket {
	t := &ticket{owner: o, admit: admit}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting.Push(o, t)
	g.admit()
	return t
}

// Leave ends a call of an owner.
func (g *Gate) Leave(o Owner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := o.Account()
	g.all--
	if g.of[a]--; g.of[a] == 0 {
		delete(g.of, a)
	}
	g.admit()
}

// admit admits waiting calls while there is room. The lock is held.
func (g *Gate) admit() {
	for g.all < g.most {
		t, ok := g.waiting.popIf(g.hasRoom)
		if !ok {
			return
		}
		g.all++
		g.of[t.owner.Account()]++
		t.admit()
	}
}
