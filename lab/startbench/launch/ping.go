package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// pingEvery is the interval at which unanswered pings are repeated.
const pingEvery = 10 * time.Millisecond

// pinger sends pings from the namespace in which it was opened.
type pinger struct {
	conn *icmp.PacketConn
	id   int
	done chan struct{}

	mu      sync.Mutex
	waiting map[netip.Addr]chan struct{} // closed by the answer
}

func openPinger() (*pinger, error) {
	conn, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return nil, fmt.Errorf("open the peer's socket: %w", err)
	}
	p := &pinger{conn: conn, id: os.Getpid() & 0xffff, done: make(chan struct{}), waiting: map[netip.Addr]chan struct{}{}}
	go p.receive()
	return p, nil
}

// receive reads answers until the socket is closed.
func (p *pinger) receive() {
	defer close(p.done)
	buffer := make([]byte, 1500)
	for {
		n, from, err := p.conn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // error of an undeliverable ping
		}
		m, err := icmp.ParseMessage(1, buffer[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		if echo, ok := m.Body.(*icmp.Echo); !ok || echo.ID != p.id {
			continue
		}
		ip, ok := from.(*net.IPAddr)
		if !ok {
			continue
		}
		addr, _ := netip.AddrFromSlice(ip.IP.To4())
		p.mu.Lock()
		if answered := p.waiting[addr]; answered != nil {
			close(answered)
			delete(p.waiting, addr)
		}
		p.mu.Unlock()
	}
}

// wait pings an address until it answers.
func (p *pinger) wait(ctx context.Context, addr netip.Addr) error {
	answered := make(chan struct{})
	p.mu.Lock()
	p.waiting[addr] = answered
	p.mu.Unlock()
	again := time.NewTicker(pingEvery)
	defer again.Stop()
	for sequence := 1; ; sequence++ {
		m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: p.id, Seq: sequence & 0xffff}}
		packet, err := m.Marshal(nil)
		if err != nil {
			return err
		}
		// An address may be unreachable at first.
		_, sendErr := p.conn.WriteTo(packet, &net.IPAddr{IP: addr.AsSlice()})
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not answer pings: %w", addr, context.Cause(ctx)), sendErr)
		case <-again.C:
		}
	}
}

func (p *pinger) close() error {
	err := p.conn.Close()
	<-p.done
	return err
}
