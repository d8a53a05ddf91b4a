package pipe_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Of libsconpipe/src/wire.h.
const (
	markBytes   = 16
	tokenBytes  = markBytes + 1024
	noticeNonce = 16 // offset in the notice
)

// tail makes of a script what follows in a stream where a token was announced: the token,
// one with an altered byte, a part of one, or none; then other bytes.
func tail(script, token []byte) (b []byte) {
	if len(script) < 2 {
		return nil
	}
	how, at := script[0]%4, int(script[1])%(2*markBytes)
	switch how {
	case 0:
		b = append(b, token...)
	case 1:
		b = append(b, token...)
		b[at] ^= 1 + script[1]>>5
	case 2:
		b = append(b, token[:at]...)
	}
	return append(b, script[2:]...)
}

// pieces calls fn for the pieces of b, whose sizes the script chooses.
func pieces(b, script []byte, fn func([]byte)) {
	for i := 0; len(b) > 0; i++ {
		n := len(b)
		if i < len(script) {
			n = min(n, 1+int(script[i])%40)
		}
		fn(b[:n])
		b = b[n:]
	}
}

func addTails(f *testing.F) {
	for how := range byte(4) {
		f.Add([]byte{how, 7})
		f.Add([]byte{how, 16, 1, 2, 3})
		f.Add([]byte{how, 31, 0, 0, 0, 0, 200})
	}
	f.Add([]byte{2, 0})
}

// FuzzToken: a program under "scon run" receives what its peer has sent without the token that
// the peer has announced, however it arrives; if it is not there, every byte.
func FuzzToken(f *testing.F) {
	needBPF(f)
	_, socket := serve(f, nil)
	address := fmt.Sprintf("127.0.0.1:%d", victim(f, piped(f, socket, "0", "posixtest", "victim", "127.0.0.1")))
	hostile := greeted(f, socket)
	addTails(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		conn, err := net.Dial("tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		h := &hostileEnd{client: client{t, hostile.conn}, conn: conn.(*net.TCPConn)}
		own, err := h.conn.File()
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		x := h.announceToken(own)
		rest := tail(script, x.answer.secret[:])
		pieces(rest, script, func(b []byte) {
			if _, err := h.conn.Write(b); err != nil {
				t.Fatal(err)
			}
		})
		if err := h.conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		want := uint32(h.sent) // each byte was 1
		for _, c := range without(rest, x.answer.secret[:markBytes]) {
			want += uint32(c)
		}
		if got := h.lastSum(x); got != want {
			t.Errorf("the sum is %d, want %d", got, want)
		}
		h.ask(message{op: opClose, id: x.id})
	})
}

// without returns a stream without the first token in it: a mark, and what follows of the
// nonce.
func without(stream, mark []byte) []byte {
	at := bytes.Index(stream, mark)
	if at < 0 {
		return stream
	}
	return slices.Concat(stream[:at], stream[min(at+tokenBytes, len(stream)):])
}

// announceToken says that the token comes in the stream to the victim.
func (h *hostileEnd) announceToken(own *os.File) *crossing {
	h.t.Helper()
	mine := h.attach(own)
	if mine.errno != 0 {
		h.t.Fatalf("%+v", mine)
	}
	x := &crossing{client: h.client, id: mine.id, socket: own}
	eventually(h.t, "the victim", func() bool {
		h.sendByTCP() // the victim asks after calls
		x.answer = h.ask(message{op: opAttached, id: x.id})
		return x.answer.errno == 0
	})
	eventually(h.t, "its look for the token", func() bool {
		h.sendByTCP()
		return x.announce().errno == 0
	})
	return x
}

// lastSum returns the victim's last answer. The victim's own token is somewhere in its stream.
func (h *hostileEnd) lastSum(x *crossing) uint32 {
	h.t.Helper()
	if err := h.conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		h.t.Fatal(err)
	}
	all, err := io.ReadAll(h.conn)
	if err != nil {
		h.t.Fatal(err)
	}
	all = without(all, x.answer.secret[:markBytes])
	if len(all) < 4 || len(all)%4 != 0 {
		h.t.Fatalf("an answer of %d bytes", len(all))
	}
	return binary.NativeEndian.Uint32(all[len(all)-4:])
}

// FuzzTokenCheck: the broker takes nothing for a token but the one that it has chosen, whole and
// at the announced place, however it arrives.
func FuzzTokenCheck(f *testing.F) {
	needBPF(f)
	b, socket := serve(f, nil)
	ends := [2]client{greeted(f, socket), greeted(f, socket)}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { listener.Close() })
	addTails(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		both := crossingsAt(t, listener, ends)
		made := b.Status().Made
		for _, x := range both {
			if got := x.announce(); got.errno != 0 {
				t.Fatalf("%+v", got)
			}
		}
		if _, err := both[1].socket.Write(both[1].answer.secret[:]); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other token", func() bool { return both[0].arrived().errno == 0 })
		token := both[0].answer.secret[:]
		rest := tail(script, token)
		sent, over, proves := 0, false, bytes.HasPrefix(rest, token)
		pieces(rest, script, func(piece []byte) {
			if _, err := both[0].socket.Write(piece); err != nil {
				t.Fatal(err)
			}
			sent += len(piece)
			want := unix.EAGAIN
			switch {
			case sent >= tokenBytes && proves:
				want = 0
			case sent >= tokenBytes:
				want = unix.EPROTO
			}
			if over {
				return
			}
			over = want != unix.EAGAIN
			got := both[1].arrived()
			for end := time.Now().Add(time.Second); over && got.errno == unix.EAGAIN && time.Now().Before(end); {
				got = both[1].arrived()
			}
			if got.errno != want {
				t.Errorf("after %d bytes: %v, want %v", sent, got.errno, want)
			}
		})
		if proves {
			eventually(t, "a connection", func() bool { return b.Status().Made == made+1 })
		} else if b.Status().Made != made {
			t.Error("a connection without a token")
		}
		for _, x := range both {
			x.ask(message{op: opClose, id: x.id})
			x.socket.Close()
		}
	})
}

// crossingsAt are the two ends of a proof that has begun, on a TCP connection to a listener.
func crossingsAt(t *testing.T, listener net.Listener, ends [2]client) (both [2]*crossing) {
	t.Helper()
	dialed, accepted := acceptedPair(t, listener)
	for i, socket := range []*os.File{dialed, accepted} {
		both[i] = &crossing{client: client{t, ends[i].conn}, socket: socket}
		both[i].id = both[i].attach(socket).id
	}
	for i, x := range both {
		both[i] = x.cross(x.id, x.socket)
	}
	return both
}
