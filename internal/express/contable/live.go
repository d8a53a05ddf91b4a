package contable

import (
	"sync"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

// live is what MakeStale looks at: the Conentries by the ports of their two ends, the
// discards, and the pairs of early Conentries. The goroutine that the Table belongs to changes it with mu locked,
// and reads it without.
type live struct {
	mu         sync.Mutex
	ports      map[int]*chain // all ports that are known to be containers'
	discards   map[datapath.Key]*Discard
	pairs      map[uint32]uint32 // of early Conentries: slot of what is received by that of what is sent
	conentries int

	second time.Time // that looked is about
	looked int       // Conentries, discards, pairs and changes
}

// chain lists the Conentries of a port.
type chain struct {
	first uint32 // number of a place, twice, and 1 more where the port is the peer's; plus 1, 0 for none
	n     int
	peers int // of these, whose peer's port it is
}

// link is a Conentry's in a chain, as chain.first.
type link struct{ next, before uint32 }

func newLive() live {
	return live{ports: make(map[int]*chain), discards: make(map[datapath.Key]*Discard), pairs: make(map[uint32]uint32)}
}

// AddPort makes a container's port known, before there are Conentries of it.
// ForgetPort is its end.
func (t *Table) AddPort(port int) {
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	t.live.of(port)
}

func (l *live) of(port int) *chain {
	if l.ports[port] == nil {
		l.ports[port] = new(chain)
	}
	return l.ports[port]
}

// list makes a Conentry known, before a program can find it.
func (t *Table) list(e *Conentry) {
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	t.enchain(e)
	t.live.conentries++
}

// relist changes a Conentry of one port to one of two.
func (t *Table) relist(e *Conentry, change func()) {
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	t.unchain(e)
	change()
	t.enchain(e)
}

func (t *Table) unlist(e *Conentry) {
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	t.unchain(e)
	t.live.conentries--
}

// ends are the ports of a Conentry whose chains it is in.
func (e *Conentry) ends() []int {
	if e.peer == 0 {
		return []int{e.Port()}
	}
	return []int{e.Port(), e.Peer()}
}

// enchain adds a Conentry to the chains of its ports; mu is locked.
func (t *Table) enchain(e *Conentry) {
	for end, port := range e.ends() {
		c := t.live.of(port)
		at := e.ref.index<<1 + uint32(end) + 1
		if c.first != 0 {
			t.linkAt(c.first).before = at
		}
		e.links[end], c.first = link{next: c.first}, at
		c.n++
		c.peers += end
	}
}

// unchain is the end of enchain; mu is locked.
func (t *Table) unchain(e *Conentry) {
	for end, port := range e.ends() {
		c, l := t.live.of(port), &e.links[end]
		if l.before != 0 {
			t.linkAt(l.before).next = l.next
		} else {
			c.first = l.next
		}
		if l.next != 0 {
			t.linkAt(l.next).before = l.before
		}
		c.n--
		c.peers -= end
	}
}

func (t *Table) linkAt(at uint32) *link { return &t.entries.all[(at-1)>>1].links[(at-1)&1] }

// among calls fn for the Conentries of a port; fn may retire it.
func (t *Table) among(port int, fn func(*Conentry)) {
	c := t.live.ports[port]
	if c == nil {
		return
	}
	for at := c.first; at != 0; {
		e, next := &t.entries.all[(at-1)>>1], t.linkAt(at).next
		fn(e)
		at = next
	}
}

// eachLive calls fn for every Conentry; mu is locked.
func (t *Table) eachLive(fn func(*Conentry)) {
	for port := range t.live.ports {
		t.among(port, func(e *Conentry) {
			if e.Port() == port {
				fn(e)
			}
		})
	}
}

func (l *live) forget(port int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ports, port)
}

func (l *live) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.ports)
	clear(l.discards)
	clear(l.pairs)
	l.conentries = 0
}

func (l *live) addDiscard(key datapath.Key, d *Discard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discards[key] = d
}

func (l *live) removeDiscard(key datapath.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.discards, key)
}
