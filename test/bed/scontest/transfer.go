package scontest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
)

// Longest datagrams that fit in 1500 bytes, in bytes of data. Behind a fragment of a longer
// one, up to seven packets of the kernel's list go regular.
const (
	longest  = 1472
	longest6 = 1452 // over IPv6
)

// WantShare fails unless nearly all bytes sent took the express path.
func (c *Connection) WantShare(before, after [2]uint64, sent [2]uint64) {
	c.B.T.Helper()
	for dir := range sent {
		if express := after[dir] - before[dir]; express < sent[dir]*9/10 {
			c.B.T.Errorf("direction %d: %d of %d bytes went express", dir, express, sent[dir])
		}
	}
}

// ExchangeExpress exchanges bytes and fails unless nearly all of them took the express
// path; no datagram is longer than 1500 bytes. One change is much of a short exchange, so
// it is repeated until none came.
func (c *Connection) ExchangeExpress(size int) {
	c.B.T.Helper()
	most := longest
	if netip.MustParseAddrPort(c.Client.RemoteAddr().String()).Addr().Is6() {
		most = longest6
	}
	Eventually(c.B.T, "an exchange during which nothing changed", func() error {
		c.GoExpress()
		generation, before := c.B.Status().Generation, c.MustFlow()
		sent := c.exchange(size, most)
		after := c.MustFlow()
		if now := c.B.Status().Generation; now != generation || after.AgeMS < before.AgeMS {
			return fmt.Errorf("generation %d, then %d", generation, now)
		}
		c.WantShare(before.ExpressBytes, after.ExpressBytes, sent)
		return nil
	})
}

// Exchange sends about size random bytes in both directions at the same time and
// compares the bytes that arrive. It returns the number sent in each direction. Over
// IPv6 some datagrams are fragmented.
func (c *Connection) Exchange(size int) (sent [2]uint64) {
	c.B.T.Helper()
	return c.exchange(size, longest)
}

func (c *Connection) exchange(size, most int) (sent [2]uint64) {
	c.B.T.Helper()
	transfer := TransferStream
	if c.Proto == "udp" {
		transfer = func(from, to net.Conn, size int, seed uint64) (uint64, error) {
			return transferDatagrams(from, to, size, most, seed)
		}
	}
	done := make(chan error, 2)
	for dir, e := range c.Ends() {
		go func() {
			var err error
			sent[dir], err = transfer(e[0], e[1], size, uint64(dir))
			done <- err
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		c.B.T.Fatal(err)
	}
	return sent
}

// Random returns a source of bytes and a source of sizes. Both ends get the same.
func Random(seed uint64) (*rand.ChaCha8, *rand.Rand) {
	key := [32]byte{byte(seed)}
	return rand.NewChaCha8(key), rand.New(rand.NewPCG(seed, 0))
}

// TransferStream sends size bytes with writes of 1 to 64 KiB and compares them at
// the receiver.
func TransferStream(from, to net.Conn, size int, seed uint64) (uint64, error) {
	sent := make(chan error, 1)
	go func() {
		source, sizes := Random(seed)
		for left := size; left > 0; {
			buf := make([]byte, min(1+sizes.IntN(64<<10), left))
			_, _ = source.Read(buf) // never fails
			if _, err := from.Write(buf); err != nil {
				sent <- err
				return
			}
			left -= len(buf)
		}
		sent <- nil
	}()
	source, _ := Random(seed)
	got, want := make([]byte, 32<<10), make([]byte, 32<<10)
	for left := size; left > 0; {
		_ = to.SetReadDeadline(time.Now().Add(Patience))
		n, err := to.Read(got[:min(left, len(got))])
		_, _ = source.Read(want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			return 0, fmt.Errorf("bytes differ from those sent, %d before the end", left)
		}
		left -= n
		if err != nil && (left > 0 || !errors.Is(err, io.EOF)) {
			return 0, fmt.Errorf("%d bytes left: %w", left, err)
		}
	}
	return uint64(size), <-sent
}

// transferDatagrams sends datagrams of 1 to most bytes, with few in flight. It fails if one
// is lost or comes out of order.
func transferDatagrams(from, to net.Conn, size, most int, seed uint64) (total uint64, err error) {
	const underway = 16
	window, stop := make(chan struct{}, underway), make(chan struct{})
	sent := make(chan error, 1)
	go func() {
		source, sizes := Random(seed)
		buf := make([]byte, most)
		for left := size; left > 0; {
			select {
			case window <- struct{}{}:
			case <-stop:
				sent <- nil
				return
			}
			n := 1 + sizes.IntN(most)
			_, _ = source.Read(buf[:n])
			if _, err := from.Write(buf[:n]); err != nil {
				sent <- err
				return
			}
			left -= n
		}
		sent <- nil
	}()
	source, sizes := Random(seed)
	got, want := make([]byte, most+1), make([]byte, most)
	for left := size; left > 0 && err == nil; {
		n := 1 + sizes.IntN(most)
		_, _ = source.Read(want[:n])
		_ = to.SetReadDeadline(time.Now().Add(Patience))
		var have int
		if have, err = to.Read(got); err == nil && !bytes.Equal(got[:have], want[:n]) {
			err = fmt.Errorf("after %d bytes: the datagram differs from the one sent (%d bytes, want %d)", total, have, n)
		}
		<-window
		left -= n
		total += uint64(n)
	}
	close(stop)
	return total, errors.Join(err, <-sent)
}
