package pipe

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// A connection proves that the network permits it: random bytes that the broker has just
// chosen cross its own TCP connection from the client's socket to the server's, and other
// ones in the other direction.
//
// Under "scon run" the processes send and receive the tokens themselves (crossing.go).
// Elsewhere the broker does:
//
//  1. The client's process passes a connected TCP socket to the broker (find).
//  2. The broker sends a token by it. It also accepts connections at the sockets that
//     servers have passed (name.go). An accepted connection is a stranger until a token
//     arrives that the broker has sent (identify).
//  3. The broker sends another token by the server's socket, which must arrive at the
//     client's.
//
// Rules, addresses and claims of a process are not evidence.

// token is a nonce that crosses a connection. It is long: two containers that cooperate can
// make a few bits pass by what the broker tells each of them while it is on its way
// (docs/pipe.md), but not as many.
type token [len(wireToken{}.Nonce)]byte

// exchange has the tokens of a proof: the client's socket sends the first one, the server's the
// second one. Both must arrive before the deadline.
type exchange struct {
	tokens   [2]token
	deadline time.Time
}

func newExchange(deadline time.Time) *exchange {
	x := &exchange{deadline: deadline}
	for i := range x.tokens {
		_, _ = rand.Read(x.tokens[i][:]) // does not fail
	}
	return x
}

// matches reports whether a side's token has arrived.
func (x *exchange) matches(side int, got []byte) bool {
	return subtle.ConstantTimeCompare(got, x.tokens[side][:]) == 1
}

// cross sends a side's token by one socket and receives it at the other one.
func (x *exchange) cross(side int, from, to *tcpSocket) error {
	if err := x.send(side, from); err != nil {
		return err
	}
	return x.expect(side, to)
}

func (x *exchange) send(side int, from *tcpSocket) error {
	if err := from.send(&x.tokens[side], x.deadline); err != nil {
		return fmt.Errorf("send a token: %w", err)
	}
	return nil
}

func (x *exchange) expect(side int, to *tcpSocket) error {
	got, err := to.receive(x.deadline)
	if err != nil {
		return fmt.Errorf("receive a token: %w", err)
	}
	if !x.matches(side, got[:]) {
		return errOtherBytes
	}
	return nil
}

// proofPatience bounds the time of both tokens. TCP retransmits lost packets several times
// within it. Rules that drop packets show as this timeout.
const proofPatience = 2 * time.Second

// Strangers are connections whose token has not arrived. If there are too many, the oldest
// one of the name with the most is closed.
const (
	mostStrangersOfName = 64
	mostStrangers       = 1024
)

type proofs struct {
	mu        sync.Mutex
	pending   map[tokenKey]*proof
	strangers map[*name][]*tcpSocket // oldest first
	count     int
}

// tokenKey is the beginning of a token, which distinguishes those in progress.
type tokenKey [16]byte

func (v *token) key() (k tokenKey) {
	copy(k[:], v[:])
	return k
}

// proof is in progress. name and tcp are set when its first token arrives.
type proof struct {
	*exchange
	name *name      // where the token arrived
	tcp  *tcpSocket // the accepted socket there
}

func (p *proofs) init() {
	p.pending = make(map[tokenKey]*proof)
	p.strangers = make(map[*name][]*tcpSocket)
}

// find proves a client's TCP connection. It returns the name and the server's socket at
// its other end.
func (p *proofs) find(client *tcpSocket) (*name, *tcpSocket, error) {
	q := &proof{exchange: newExchange(time.Now().Add(proofPatience))}
	p.mu.Lock()
	p.pending[q.tokens[0].key()] = q
	p.mu.Unlock()
	err := q.send(0, client)
	if err == nil {
		err = q.expect(1, client)
	}
	p.mu.Lock()
	delete(p.pending, q.tokens[0].key())
	p.mu.Unlock()
	if err == nil {
		return q.name, q.tcp, nil
	}
	if q.tcp != nil {
		q.tcp.close()
	}
	return nil, nil, fmt.Errorf("no proof by %v, which is no name of the pipe or not reachable: %w: %w", client.peer, unix.ECONNREFUSED, err)
}

// identify waits for a stranger's token and answers it.
func (p *proofs) identify(n *name, tcp *tcpSocket) {
	deadline := time.Now().Add(proofPatience)
	if out := p.add(n, tcp); out != nil {
		out.close()
	}
	v, err := tcp.receive(deadline)
	if err == nil {
		if q := p.recognize(n, tcp, v); q != nil {
			_ = q.send(1, tcp) // on failure the client times out
			return
		}
	} else {
		p.forget(n, tcp)
	}
	tcp.close()
}

// recognize removes a stranger and returns the proof of its token, or nil.
func (p *proofs) recognize(n *name, tcp *tcpSocket, v *token) *proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(n, tcp)
	q := p.pending[v.key()]
	if q == nil || !q.matches(0, v[:]) {
		return nil
	}
	delete(p.pending, v.key())
	q.name, q.tcp = n, tcp
	return q
}

// forget removes a stranger.
func (p *proofs) forget(n *name, tcp *tcpSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(n, tcp)
}

// add registers a stranger. It returns the one to close for it, or nil.
func (p *proofs) add(n *name, tcp *tcpSocket) (out *tcpSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := n
	if p.count >= mostStrangers {
		from = p.largest()
	}
	if p.count >= mostStrangers || len(p.strangers[n]) >= mostStrangersOfName {
		out = p.strangers[from][0]
		p.drop(from, out)
	}
	p.strangers[n] = append(p.strangers[n], tcp)
	p.count++
	return out
}

// largest returns the name with the most strangers of the owner with the most strangers, so that
// an owner with many names does not displace the strangers of others. The lock is held.
func (p *proofs) largest() (largest *name) {
	of := make(map[quota.Owner]int)
	for n, all := range p.strangers {
		of[n.owner.owner] += len(all)
	}
	for n, all := range p.strangers {
		if largest == nil || of[n.owner.owner] > of[largest.owner.owner] ||
			of[n.owner.owner] == of[largest.owner.owner] && len(all) > len(p.strangers[largest]) {
			largest = n
		}
	}
	return largest
}

// drop removes a stranger, if it still is one. The lock is held.
func (p *proofs) drop(n *name, tcp *tcpSocket) {
	all := p.strangers[n]
	for i, t := range all {
		if t == tcp {
			p.count--
			if p.strangers[n] = append(all[:i:i], all[i+1:]...); len(p.strangers[n]) == 0 {
				delete(p.strangers, n)
			}
			return
		}
	}
}

// dropStrangers closes the strangers of a name that is removed.
func (p *proofs) dropStrangers(n *name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.strangers[n] {
		t.close()
	}
	p.count -= len(p.strangers[n])
	delete(p.strangers, n)
}

var errOtherBytes = fmt.Errorf("received other bytes than were sent: %w", unix.EPROTO)

// prove sends new tokens over a connection's TCP in both directions.
func (c *connection) prove(deadline time.Time) error {
	x := newExchange(deadline)
	if err := x.cross(0, c.tcp[0], c.tcp[1]); err != nil {
		return err
	}
	return x.cross(1, c.tcp[1], c.tcp[0])
}
