package pipe_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// peerReadWait is the offset of the peer's read_wait: not 0 once the peer reads its ring.
const peerReadWait = 384 + ownReadWait

// hostileEnd is an end of an attached TCP connection to a program under "scon run", controlled
// by a hostile process.
type hostileEnd struct {
	client
	conn   *net.TCPConn
	answer answer // its first file is the doorbell
	page   []byte
	sent   uint64 // bytes by TCP
}

func openHostile(t *testing.T, broker client, address string) *hostileEnd {
	t.Helper()
	conn, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	h := &hostileEnd{client: client{t, broker.conn}, conn: conn.(*net.TCPConn)}
	t.Cleanup(func() { conn.Close() })
	socket, err := h.conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	mine := h.attach(socket)
	if mine.errno != 0 || len(mine.files) != 1 {
		t.Fatalf("%+v", mine)
	}
	h.prove(mine.id, socket)
	h.answer.files = h.answer.files[:3] // without the alert's other end
	h.page = h.answer.open(t)[0]
	eventually(t, "its look at the ring", func() bool {
		h.sendByTCP()
		_ = submit(h.answer.files[0], kindSync, 0, 0, 32)
		return uint32(load(h.page, peerReadWait)) != 0
	})
	return h
}

// prove has both tokens cross. The victim answers after calls, with nothing: all that it
// sends is its token.
func (h *hostileEnd) prove(id uint32, socket *os.File) {
	h.t.Helper()
	x := &crossing{client: h.client, id: id, socket: socket}
	eventually(h.t, "the victim", func() bool {
		h.sendByTCP() // the victim asks after calls
		x.answer = h.ask(message{op: opAttached, id: id})
		return x.answer.errno == 0
	})
	eventually(h.t, "its look for the token", func() bool {
		h.sendByTCP()
		return x.announce().errno == 0
	})
	n, err := h.conn.Write(x.answer.secret[:])
	if err != nil {
		h.t.Fatal(err)
	}
	h.sent += uint64(n)
	eventually(h.t, "its token", func() bool {
		h.sendByTCP()
		at := markIn(h.t, socket, x.answer.secret[:markBytes]) // nothing is read before
		return at >= 0 && x.with(opArrived, uint64(at), socket).errno == 0
	})
	eventually(h.t, "the ring", func() bool {
		h.sendByTCP()
		h.answer = h.ask(message{op: opProven, id: id})
		return h.answer.errno == 0
	})
}

// markIn returns where a mark is in the unread bytes of a socket; -1: nowhere.
func markIn(t testing.TB, socket *os.File, mark []byte) int {
	t.Helper()
	buf := make([]byte, 1<<16)
	n, _, err := unix.Recvfrom(int(socket.Fd()), buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return bytes.Index(buf[:max(n, 0)], mark)
}

// sendByTCP sends a byte by TCP.
func (h *hostileEnd) sendByTCP() {
	h.t.Helper()
	n, err := h.conn.Write([]byte{1})
	if err != nil {
		h.t.Fatal(err)
	}
	h.sent += uint64(n)
}

// sendByRing submits b and signals the doorbell; errors are ignored.
func (h *hostileEnd) sendByRing(b []byte) {
	if len(b) > 0 {
		_ = submit(h.answer.files[0], kindSend, addr(b), uint32(len(b)), 32)
	}
	_ = unix.Sendto(h.answer.files[0], []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
}

// FuzzRun: whatever the other end of a connection writes into a ring and a page, a program
// under "scon run" gets bytes or an error, and serves the next client.
func FuzzRun(f *testing.F) {
	needBPF(f)
	_, socket := serve(f, nil)
	cmd := piped(f, socket, "0", "posixtest", "victim", "127.0.0.1")
	port := victim(f, cmd)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	hostile := greeted(f, socket)
	hostilePages(f)
	f.Add([]byte{1})                                      // a part of the first position
	f.Add(make([]byte, 15))                               // a position before received bytes
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\x7f")) // a position that is never reached
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		h := openHostile(t, hostile, address)
		if len(script) == 0 || script[0]&1 == 0 {
			h.sendByRing(binary.NativeEndian.AppendUint64(nil, h.sent))
		}
		h.sendByRing(script)
		writePage(t, h.page, script, func() { h.sendByRing(script) })
		h.conn.Close()
		h.ask(message{op: opClose, id: h.answer.id})
		serves(t, address)
	})
}

// serves fails unless the victim answers a well-behaved client, and only with that client's
// bytes.
func serves(t *testing.T, address string) {
	t.Helper()
	conn, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	sum := make([]byte, 4)
	if _, err := conn.Write([]byte{42}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, sum); err != nil || binary.NativeEndian.Uint32(sum) != 42 {
		t.Fatalf("the victim's answer: %v, %v", sum, err)
	}
}
