package pipe_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// peerReadWait is where a page says that the other end looks at its ring.
const peerReadWait = 384 + ownReadWait

// hostileEnd is an end of a TCP connection to a program under "scon run" that has
// gone over, in the hands of somebody who speaks the protocol as he likes.
type hostileEnd struct {
	client
	conn   *net.TCPConn
	answer answer // its first file is the doorbell
	page   []byte
	sent   uint64 // by TCP
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
	comes(t, "the victim", func() bool {
		h.byTCP() // the victim asks after calls
		h.answer = h.ask(message{op: opAttached, id: mine.id})
		return h.answer.errno == 0
	})
	h.answer.files = append(mine.files, h.answer.files...)
	h.page = h.answer.open(t)[0]
	comes(t, "its look at the ring", func() bool {
		h.byTCP()
		_ = submit(mine.files[0], kindLook, 0, 0, 32)
		return uint32(load(h.page, peerReadWait)) != 0
	})
	return h
}

func (h *hostileEnd) byTCP() {
	h.t.Helper()
	n, err := h.conn.Write([]byte{1})
	if err != nil {
		h.t.Fatal(err)
	}
	h.sent += uint64(n)
}

// byRing sends what the kernel takes.
func (h *hostileEnd) byRing(b []byte) {
	if len(b) > 0 {
		_ = submit(h.answer.files[0], kindSend, addr(b), uint32(len(b)), 32)
	}
	_ = unix.Sendto(h.answer.files[0], []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
}

// FuzzRun: whatever is written into a ring and into a page by the other end of a
// connection, a program under "scon run" gets bytes or an error, and serves the
// next client.
func FuzzRun(f *testing.F) {
	needBPF(f)
	_, socket := serve(f, nil)
	cmd := piped(f, socket, "0", "posixtest", "victim", "127.0.0.1")
	port := victim(f, cmd)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	hostile := greeted(f, socket)
	hostilePages(f)
	f.Add([]byte{1})                                      // a part of where the ring takes over
	f.Add(make([]byte, 15))                               // before what has come
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\x7f")) // never
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		h := openHostile(t, hostile, address)
		if len(script) == 0 || script[0]&1 == 0 {
			h.byRing(binary.NativeEndian.AppendUint64(nil, h.sent))
		}
		h.byRing(script)
		strokes(t, h.page, script, func() { h.byRing(script) })
		h.conn.Close()
		h.ask(message{op: opClose, id: h.answer.id})
		serves(t, address)
	})
}

// serves fails unless the victim answers somebody who does nothing wrong, and
// only with what was his.
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
