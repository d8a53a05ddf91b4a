package pipe

import (
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A connection proves that the network lets it be: bytes that the broker has just
// chosen cross its own TCP connection, from the client's socket to the server's and
// other ones back.
//
//  1. The client's process has connected a TCP socket and handed it over (find).
//  2. The broker sends a token by it. At the other side it accepts from the sockets
//     that servers have handed over (name.go); whoever comes there is a stranger until
//     a token arrives that was sent (meet).
//  3. The broker answers by the server's socket with another token, which has to
//     arrive at the client's.
//
// Nothing is concluded from rules, addresses or what a process says.

// token is what crosses: nobody can guess it.
type token [16]byte

// proofPatience is how long the two tokens may take; TCP sends a packet that is lost
// again several times meanwhile. Rules that drop packets look like this.
const proofPatience = 2 * time.Second

// Strangers are connections whose token has not arrived. Where there are too many,
// that one is closed which has waited longest at the name that has most of them.
const (
	mostStrangersOfName = 64
	mostStrangers       = 1024
)

type proofs struct {
	mu        sync.Mutex
	sought    map[token]*proof
	strangers map[*name][]*tcpSocket // in the order in which they came
	count     int
}

// proof is one under way, found once its first token has arrived.
type proof struct {
	answer token
	name   *name      // where it arrived
	tcp    *tcpSocket // at which socket of it
}

func (p *proofs) init() {
	p.sought = make(map[token]*proof)
	p.strangers = make(map[*name][]*tcpSocket)
}

func newToken() (v token) {
	_, _ = rand.Read(v[:]) // which does not fail
	return v
}

// find returns the name and the server's socket that a client's TCP connection leads
// to.
func (p *proofs) find(client *tcpSocket) (*name, *tcpSocket, error) {
	deadline := time.Now().Add(proofPatience)
	first, q := newToken(), &proof{answer: newToken()}
	p.mu.Lock()
	p.sought[first] = q
	p.mu.Unlock()
	err := client.send(first, deadline)
	if err == nil {
		err = client.expect(q.answer, deadline)
	}
	p.mu.Lock()
	delete(p.sought, first)
	p.mu.Unlock()
	if err == nil {
		return q.name, q.tcp, nil
	}
	if q.tcp != nil {
		q.tcp.close()
	}
	return nil, nil, fmt.Errorf("%v does not answer as a name of the pipe: %w: %w", client.peer, unix.ECONNREFUSED, err)
}

// meet waits for a stranger's token, and answers it.
func (p *proofs) meet(n *name, tcp *tcpSocket) {
	deadline := time.Now().Add(proofPatience)
	if out := p.add(n, tcp); out != nil {
		out.close()
	}
	v, err := tcp.receive(deadline)
	if q := p.recognize(n, tcp, v); err == nil && q != nil {
		_ = tcp.send(q.answer, deadline) // else the client waits in vain
		return
	}
	tcp.close()
}

// recognize ends a stranger's waiting, and returns the proof that its token is of.
func (p *proofs) recognize(n *name, tcp *tcpSocket, v token) *proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(n, tcp)
	q := p.sought[v]
	if q != nil {
		delete(p.sought, v)
		q.name, q.tcp = n, tcp
	}
	return q
}

// add counts a stranger, and returns the one that has to go for it.
func (p *proofs) add(n *name, tcp *tcpSocket) (out *tcpSocket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := n
	if p.count >= mostStrangers {
		for other, all := range p.strangers {
			if len(all) > len(p.strangers[from]) {
				from = other
			}
		}
	}
	if p.count >= mostStrangers || len(p.strangers[n]) >= mostStrangersOfName {
		out = p.strangers[from][0]
		p.drop(from, out)
	}
	p.strangers[n] = append(p.strangers[n], tcp)
	p.count++
	return out
}

// drop forgets a stranger, if it is one still. The lock is held.
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

// dropStrangers closes those of a name that is removed.
func (p *proofs) dropStrangers(n *name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.strangers[n] {
		t.close()
	}
	p.count -= len(p.strangers[n])
	delete(p.strangers, n)
}

// expect receives a token, which has to be that one.
func (t *tcpSocket) expect(want token, deadline time.Time) error {
	got, err := t.receive(deadline)
	if err != nil {
		return fmt.Errorf("receive a token: %w", err)
	}
	if got != want {
		return errOtherBytes
	}
	return nil
}

var errOtherBytes = fmt.Errorf("other bytes came than were sent: %w", unix.EPROTO)

// prove has tokens cross a connection's TCP both ways once more.
func (c *connection) prove(deadline time.Time) error {
	client, server := c.tcp[0], c.tcp[1]
	there, back := newToken(), newToken()
	if err := client.send(there, deadline); err != nil {
		return fmt.Errorf("send a token: %w", err)
	}
	if err := server.expect(there, deadline); err != nil {
		return err
	}
	if err := server.send(back, deadline); err != nil {
		return fmt.Errorf("send a token: %w", err)
	}
	return client.expect(back, deadline)
}
