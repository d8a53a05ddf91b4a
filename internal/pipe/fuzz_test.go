package pipe_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
)

// writePage applies a script to a page, as a hostile process could: each write has an index of
// a 4-byte word and a value. It calls after after each write.
func writePage(t testing.TB, page, script []byte, after func()) {
	t.Helper()
	for ; len(script) >= 6; script = script[6:] {
		at := int(binary.NativeEndian.Uint16(script)) % (len(page) / 4) * 4
		copy(page[at:at+4], script[2:6])
		after()
	}
}

// write returns one write of a script, at an offset in bytes.
func write(at int, value uint32) []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint16(nil, uint16(at/4)), value)
}

// script joins writes.
func script(pieces ...[]byte) (all []byte) {
	for _, p := range pieces {
		all = append(all, p...)
	}
	return all
}

// hostilePages adds seeds that write each meaningful word.
func hostilePages(f *testing.F) {
	f.Add(write(ownHead, 1000))
	f.Add(script(write(ownHead, 65536), write(ownHead, 65537)))
	f.Add(write(ownHead+4, 1))
	f.Add(script(write(ownHead, 100), write(ownHead, 99)))
	f.Add(script(write(ownGeneration, 1), write(ownHead, 10)))
	f.Add(script(write(ownSwitchAt, 5), write(ownGeneration, 1), write(ownHead, 10)))
	f.Add(script(write(ownTail, 1), write(ownTail+4, 1<<31)))
	f.Add(script(write(ownReadWait, 1), write(ownReadWait+4, 1), write(ownReadWait+8, 1), write(ownGeneration+4, 1)))
	f.Add(script(write(pageLent, 1), write(pageLoans+loanEnd, 100), write(pageLoans+loanRegion, 1), write(ownHead, 100)))
	f.Add(script(write(pageLent, 1), write(pageLoans+loanEnd, 100), write(ownHead, 100)))
	f.Add(script(write(peerHead, 1<<20), write(peerTail, 1<<20), write(ownHead, 5)))
}

// open maps the memory of an answer: the page first.
func (a answer) open(t testing.TB) (memory [][]byte) {
	t.Helper()
	for i, fd := range a.files[1:] {
		size := int(a.size)
		if i == 0 {
			size = os.Getpagesize()
		}
		m, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(m) })
		memory = append(memory, m)
	}
	return memory
}

// FuzzPages: whatever a process with the engine copier or bpf writes into its page, the broker
// keeps serving, and no connection gets bytes of another one.
func FuzzPages(f *testing.F) {
	_, socket := serve(f, nil)
	a, b := greeted(f, socket), greeted(f, socket)
	hostilePages(f)
	others := []pipe.Engine{pipe.Copier}
	if hasBPF(f) {
		others = append(others, pipe.BPF)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		for _, engine := range others {
			a, b := client{t, a.conn}, client{t, b.conn}
			first, second := connect(a, b, engine)
			bystander, peer := connect(a, b, engine)
			page, quiet := first.open(t)[0], bystander.open(t)[0]
			src := make([]byte, 4096)
			writePage(t, page, script, func() {
				if engine == pipe.Copier {
					_, _ = unix.Write(first.files[0], []byte{0})
				} else {
					_ = submit(first.files[0], kindSend, addr(src), uint32(len(script)*100), 32)
				}
			})
			if head := load(quiet, peerHead); head != 0 {
				t.Fatalf("%v: another connection got %d bytes", engine, head)
			}
			for _, id := range []uint32{first.id, bystander.id} {
				a.must(message{op: opClose, id: id})
			}
			for _, id := range []uint32{second.id, peer.id} {
				b.must(message{op: opClose, id: id})
			}
		}
	})
}

// victim starts a program that prints the port on which it serves, and that exits with status
// 0 at EOF of its input.
func victim(f *testing.F, cmd *exec.Cmd) (port uint16) {
	f.Helper()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		f.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			f.Error(err)
		}
	})
	if _, err := fmt.Fscan(out, &port); err != nil {
		f.Fatal(err)
	}
	return port
}

// FuzzVictim: whatever a peer with the engine sealed writes into its page, the library returns
// at most an error.
func FuzzVictim(f *testing.F) {
	_, socket := serve(f, nil)
	cmd := command(f, socket, "victim", "ENGINE=sealed")
	port := victim(f, cmd)
	name := netip.AddrPortFrom(loopback.Addr(), port)
	hostile := greeted(f, socket)
	hostilePages(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		c := client{t, hostile.conn}
		want := message{op: opConnect, engines: 1 << pipe.Sealed, name: name}
		end := c.ask(want)
		for last := time.Now().Add(20 * time.Second); end.errno == unix.ECONNREFUSED; end = c.ask(want) {
			if time.Now().After(last) {
				t.Fatal("the program no longer accepts connections")
			}
			time.Sleep(time.Millisecond) // its backlog is full
		}
		page := end.open(t)[0]
		c.must(message{op: opMapped, id: end.id})
		writePage(t, page, script, func() { _ = unix.Sendto(end.files[0], []byte{0}, unix.MSG_DONTWAIT, nil) })
		c.must(message{op: opClose, id: end.id})
	})
}
