package pipe_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// dropAll and dropNothing are rules of a test's own namespace.
const (
	dropAll = `nft add table ip f
		nft add chain ip f in { type filter hook input priority 0 ; }
		nft add rule ip f in meta l4proto tcp drop`
	dropNothing = "nft delete table ip f"
)

// crosses is how an end tries to get something to the other one.
type crosses struct {
	try     func()      // by the first end
	arrived func() bool // at the second end, since the last call
}

// pausable opens a connection between two processes of a namespace, and returns what an end can
// do there.
func pausable(t *testing.T, socket string, engine pipe.Engine) crosses {
	if engine != pipe.BPF && engine != pipe.Copier {
		t.Fatalf("connections of %v cannot be paused: two processes that cooperate keep them", engine)
	}
	if engine == pipe.BPF {
		p := openPair(t, socket)
		src, seen := memory(t, 4096), uint64(0)
		*word(p.page[0], ownTail) = 0
		return crosses{
			try: func() {
				_ = submit(p.client.files[0], kindSend, addr(src), 8, 32)
				_ = unix.Sendto(p.client.files[0], []byte{7}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
			},
			arrived: func() bool {
				head := load(p.page[1], peerHead)
				n, _, err := unix.Recvfrom(p.server.files[0], make([]byte, 8), unix.MSG_DONTWAIT)
				some := head != seen || n > 0 && err == nil
				seen = head
				return some
			},
		}
	}
	ends, _ := openEnds(t, socket)
	sent, seen := uint64(0), uint64(0)
	return crosses{
		try: func() {
			sent += 8
			store(ends[0].page, ownHead, sent)
			_ = unix.Sendto(ends[0].answer.files[0], []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		},
		arrived: func() bool {
			head := load(ends[1].page, peerHead)
			some := head != seen
			seen = head
			return some
		},
	}
}

// While connections prove themselves after a change of rules, nothing gets from one end to the
// other by the pipe, with each engine of the default settings: two processes that cooperate cannot
// carry the tokens past the rules.
func TestPausedByProof(t *testing.T) {
	t.Parallel()
	for _, name := range config.Default().Pipe.Engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine, ok := pipe.ParseEngine(name)
			if !ok {
				t.Fatalf("no engine %s", name)
			}
			if engine == pipe.BPF {
				needBPF(t)
			}
			b, socket := serve(t, nil)
			ns := nstest.New(t)
			var all []crosses
			if err := netns.Do(ns, func() error {
				for range 3 {
					all = append(all, pausable(t, socket, engine))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			flows := func() {
				for _, c := range all {
					eventually(t, "bytes", func() bool {
						c.try()
						return c.arrived()
					})
				}
			}
			flows()
			b.RecheckWithin(time.Minute).Wait()
			flows() // proven
			nstest.Run(t, ns, dropAll)
			proofs := b.RecheckWithin(5 * time.Second)
			eventually(t, "nothing is copied any more", b.Still)
			for _, c := range all { // of before
				for c.arrived() {
				}
			}
			const tries = 100
			for range tries {
				for i, c := range all {
					c.try()
					if c.arrived() {
						t.Fatalf("bytes by connection %d during its proof", i)
					}
				}
				time.Sleep(time.Millisecond)
			}
			proofs.Wait()
			if n := b.Status().Refused["rules changed"]; n != uint64(len(all)) {
				t.Errorf("%d connections were cut, want %d", n, len(all))
			}
		})
	}
}

// An end that has closed cannot send on by its doorbell, though its peer keeps the connection.
func TestClosedSends(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	p := openPair(t, socket)
	src := memory(t, 4096)
	if err := submit(p.client.files[0], kindSend, addr(src), 8, 32); err != nil {
		t.Fatal(err)
	}
	p.sessions[0].must(message{op: opClose, id: p.client.id})
	for _, bell := range []int{p.client.files[0], p.server.files[0]} {
		if err := submit(bell, kindSend, addr(src), 8, 32); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("after the end: %v, want %v", err, unix.EOPNOTSUPP)
		}
	}
}

// Bytes that an end of copier has sent before it closed are subject to changes of rules, too.
func TestClosedCopies(t *testing.T) {
	t.Parallel()
	for what, leave := range map[string]func(s client, id uint32){
		"closed": func(s client, id uint32) { s.must(message{op: opClose, id: id}) },
		// The process has died, and its child has the memory.
		"died": func(s client, _ uint32) { s.conn.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testClosedCopies(t, leave)
		})
	}
}

func testClosedCopies(t *testing.T, leave func(s client, id uint32)) {
	b, socket := serve(t, nil)
	ns := nstest.New(t)
	var ends [2]mappedEnd
	if err := netns.Do(ns, func() error {
		var sessions [2]client
		ends, sessions = openEnds(t, socket)
		store(ends[0].page, ownHead, ends[0].answer.size)
		ends[0].ring()
		ends[1].await(peerHead, ends[0].answer.size)
		store(ends[0].page, ownHead, 2*ends[0].answer.size) // for which there is no room
		leave(sessions[0], ends[0].answer.id)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, ns, dropAll)
	b.RecheckNow()
	store(ends[1].page, ownTail, ends[0].answer.size)
	_, _ = unix.Write(ends[1].answer.files[0], []byte{0})
	ends[1].ended()
	if head := load(ends[1].page, peerHead); head != ends[0].answer.size {
		t.Errorf("%d bytes have arrived, want %d", head, ends[0].answer.size)
	}
}

// A process can send no files to the sockets that the broker has given it, where the kernel can
// refuse them, and cannot change that: their close could block. Those of a doorbell of bpf never
// arrive.
func TestSocketsTakeNoFiles(t *testing.T) {
	t.Parallel()
	needBPF(t)
	b, socket := serve(t, nil)
	p := openPair(t, socket)
	file := unix.UnixRights(int(os.Stdin.Fd()))
	_ = unix.Sendmsg(p.client.files[0], []byte{0}, file, nil, unix.MSG_DONTWAIT)
	oob := make([]byte, unix.CmsgSpace(4))
	if n, oobn, _, _, err := unix.Recvmsg(p.server.files[0], make([]byte, 8), oob, unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a doorbell of bpf has passed a file: %d bytes, %d of control data, %v", n, oobn, err)
	}
	if err := unix.SetsockoptInt(p.server.files[0], unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("the other end allows files: %v, want %v", err, unix.EPERM)
	}
	if !kernelAtLeast(t, 6, 16) {
		t.Skip("missing: Linux 6.16, for SO_PASSRIGHTS")
	}
	if passes, err := b.PassesFiles(); passes || err != nil {
		t.Errorf("sockets that the broker has not accepted, or refuses, pass files: %v, %v", passes, err)
	}
	a := greeted(t, socket)
	name := a.must(message{op: opBind, engines: 1 << pipe.Unix, name: loopback})
	ends, _ := openEnds(t, socket)
	ns := nstest.New(t)
	tcp, _ := tcpPair(t, ns)
	for what, fd := range map[string]int{
		"a doorbell of copier":   ends[0].answer.files[0],
		"a backlog's doorbell":   a.must(message{op: opListen, id: name.id, arg: 4}).files[0],
		"an attachment's socket": greetedIn(t, ns, socket).attach(tcp).files[0],
	} {
		if err := unix.Sendmsg(fd, []byte{0}, file, nil, unix.MSG_DONTWAIT); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v, want %v", what, err, unix.EPERM)
		}
	}
}

// A process can give the sockets that the broker has given it no name, which the other end could
// read: while a connection is paused, too.
func TestSocketsTakeNoNames(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	p := openPair(t, socket)
	ends, _ := openEnds(t, socket)
	for what, fd := range map[string]int{"a doorbell of bpf": p.client.files[0], "a doorbell of copier": ends[0].answer.files[0]} {
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@bits"}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v, want %v", what, err, unix.EINVAL)
		}
	}
}
