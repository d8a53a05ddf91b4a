package pipe

import (
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// ProofPatience is the time that a change of rules leaves for proofs.
const ProofPatience = proofPatience

// RecheckNow has all connections prove themselves, and waits for that.
func (b *Broker) RecheckNow() { b.recheck(time.Now()).Wait() }

// RecheckWithin begins proofs of all connections with another time limit. The result waits for
// their end.
func (b *Broker) RecheckWithin(limit time.Duration) *sync.WaitGroup {
	return b.recheck(time.Now().Add(limit - proofPatience))
}

// MarkWithZero has the marks of tokens begin with 0, as one in 256 does.
func (b *Broker) MarkWithZero() { b.random = zeroFirst{} }

type zeroFirst struct{}

func (zeroFirst) Read(p []byte) (n int, err error) {
	n, err = rand.Read(p)
	p[0] = 0
	return n, err
}

// PoolAlways gives each process a pool before its first connection.
func (b *Broker) PoolAlways() { b.pooledFrom = 0 }

// FillCrossings takes all places of proofs under "scon run" that the containers with sessions may
// have, until free is called.
func (b *Broker) FillCrossings() (free func()) { return b.fill(b.crossings) }

// FillMakings does so with those of connections in creation.
func (b *Broker) FillMakings() (free func()) { return b.fill(b.makings) }

// FillCloses takes all places of closes that the containers with sessions may have, until free is
// called: their closes wait.
func (b *Broker) FillCloses() (free func()) { return b.fill(b.closes) }

func (b *Broker) fill(gate *quota.Gate) (free func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var taken []quota.Owner
	for s := range b.sessions {
		for gate.Enter(s.owner, time.Now()) {
			taken = append(taken, s.owner)
		}
	}
	return func() {
		for _, o := range taken {
			gate.Leave(o)
		}
	}
}

// Files returns how many files are charged to containers.
func (b *Broker) Files() int64 { return b.ledger.Used(quota.Files) }

// PoolFiles counts the files that pools are charged with, and no others, which are closed a
// little after the reply that they went with.
func (b *Broker) PoolFiles() (n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.sessions {
		n += s.poolFiles
	}
	return n
}

// AllAged has all connections prove themselves as if their last proofs were old.
func (b *Broker) AllAged() { b.refresh(time.Now().Add(attachedAge)) }

// Proving reports whether a connection proves itself.
func (b *Broker) Proving() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.connections {
		if c.checking {
			return true
		}
	}
	return false
}

// Still reports whether nothing copies any more for the latest round of proofs.
func (b *Broker) Still() bool {
	b.mu.Lock()
	s := b.still
	b.mu.Unlock()
	if s == nil {
		return false
	}
	select {
	case <-s.done:
		return s.err == nil
	default:
		return false
	}
}

// PassesFiles reports whether connections that the broker has not accepted yet pass files.
func (b *Broker) PassesFiles() (passes bool, err error) {
	raw, err := b.listener.SyscallConn()
	if err != nil {
		return false, err
	}
	value := 0
	closed := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS) })
	return value != 0, errors.Join(err, closed)
}

// SendsSmall says what the broker thinks of the messages of its only name.
func (b *Broker) SendsSmall() bool {
	b.mu.Lock()
	names := slices.Collect(maps.Keys(b.names))
	b.mu.Unlock()
	return len(names) == 1 && names[0].sendsSmall()
}
