package pipe_test

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// answers fails the test unless the broker answers.
func answers(t *testing.T, b *pipe.Broker) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		b.Status()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		panic("the broker hangs") // the test's cleanup would hang, too
	}
}

// fill writes to a file until it is full, and then makes it blocking.
func fill(t *testing.T, fd int, piece []byte) {
	t.Helper()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Write(fd, piece); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// The broker does not wait for room in a doorbell that a process has filled and made
// blocking.
func TestFullDoorbells(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	t.Run("of a name", func(t *testing.T) {
		a, other := greeted(t, socket), greeted(t, socket)
		name := a.must(message{op: opBind, engines: 1 << pipe.Unix, name: loopback})
		bell := a.must(message{op: opListen, id: name.id, arg: 4}).files[0]
		fill(t, bell, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		other.must(message{op: opConnect, engines: 1 << pipe.Unix, name: netip.AddrPortFrom(loopback.Addr(), name.port)})
		a.must(message{op: opWake, id: name.id})
		answers(t, b)
	})
	t.Run("of an attached end", func(t *testing.T) {
		needBPF(t)
		ns := nstest.New(t)
		client, server := tcpPair(t, ns)
		a, other := greetedIn(t, ns, socket), greetedIn(t, ns, socket)
		mine := a.attach(client)
		if len(mine.files) != 1 {
			t.Fatalf("%+v", mine)
		}
		fill(t, mine.files[0], make([]byte, 4096))
		theirs := other.attach(server)
		prove(t, [2]*crossing{a.cross(mine.id, client), other.cross(theirs.id, server)})
		eventually(t, "a connection", func() bool {
			answers(t, b)
			return len(b.Status().Connections) == 1
		})
	})
}

// If more connections wait than a doorbell has room for, a process that reads the doorbell
// before each accept still accepts all of them.
func TestLongBacklog(t *testing.T) {
	t.Parallel()
	const many = 600
	_, socket := serve(t, nil)
	a, other := greeted(t, socket), greeted(t, socket)
	name := a.must(message{op: opBind, engines: 1 << pipe.Unix, name: loopback})
	bell := a.must(message{op: opListen, id: name.id, arg: many}).files[0]
	for range many {
		other.must(message{op: opConnect, engines: 1 << pipe.Unix, name: netip.AddrPortFrom(loopback.Addr(), name.port)})
	}
	for accepted := 0; accepted < many; {
		if _, err := unix.Read(bell, make([]byte, 8)); err != nil {
			t.Fatalf("after %d connections: %v", accepted, err)
		}
		if got := a.ask(message{op: opAccept, id: name.id}); got.errno == 0 {
			accepted++
		} else if got.errno != unix.EAGAIN {
			t.Fatalf("%+v", got)
		}
	}
}

// blockingMemory returns a page whose first access blocks until the test ends, by userfaultfd.
// touched returns when a thread has accessed it.
func blockingMemory(t *testing.T) (memory []byte, touched func()) {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0) // poll(2) fails on a blocking one
	if errno == unix.ENOSYS {
		t.Skip("missing: userfaultfd in this kernel")
	}
	if errno != 0 {
		t.Fatalf("userfaultfd: %v", errno)
	}
	file := os.NewFile(fd, "userfaultfd")
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	t.Cleanup(func() { file.Close() }) // before the munmap: ends the wait
	const uffdioAPI, uffdioRegister, api, missing = 0xc018aa3f, 0xc020aa00, 0xaa, 1
	hello := [3]uint64{api}
	register := [4]uint64{uint64(addr(memory)), uint64(len(memory)), missing}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&hello))); errno != 0 {
		t.Fatal(errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioRegister, uintptr(unsafe.Pointer(&register))); errno != 0 {
		t.Fatal(errno)
	}
	return memory, func() {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 20000); n != 1 || p[0].Revents != unix.POLLIN {
			t.Fatalf("no thread accesses the page: %v", err)
		}
	}
}

// holdLock holds a socket's lock until the test ends, by a system call that waits for memory.
func holdLock(t *testing.T, fd int) {
	t.Helper()
	memory, touched := blockingMemory(t)
	filter := unix.SockFprog{Len: 1, Filter: (*unix.SockFilter)(unsafe.Pointer(&memory[0]))}
	go func() {
		runtime.LockOSThread() // which ends with the goroutine
		var all unix.Sigset_t
		for i := range all.Val {
			all.Val[i] = ^all.Val[i]
		}
		// A signal of the runtime would end the wait.
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil); err != nil {
			t.Error(err)
		}
		_, _, _ = unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			uintptr(unsafe.Pointer(&filter)), unsafe.Sizeof(filter), 0)
	}()
	touched()
}

// A process that holds its doorbell's lock, by a system call that waits for memory, does not
// block the broker.
func TestHeldDoorbell(t *testing.T) {
	t.Parallel()
	for _, engine := range engines(t) {
		t.Run(engine.String(), func(t *testing.T) {
			b, socket := serve(t, nil)
			a, other := greeted(t, socket), greeted(t, socket)
			first, _ := connect(a, other, engine)
			if engine == pipe.BPF { // whose doorbells have a locked filter
				if err := unix.SetsockoptInt(first.files[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20); !errors.Is(err, unix.EPERM) {
					t.Errorf("an option of a doorbell: %v, want %v", err, unix.EPERM)
				}
			} else {
				holdLock(t, first.files[0])
			}
			other.conn.Close()
			a.conn.Close()
			eventually(t, "the end of the connection", func() bool {
				answers(t, b)
				return len(b.Status().Connections) == 0
			})
		})
	}
}

// An end attaches while its process holds the lock of its socket: the broker reads the socket
// without it.
func TestAttachHeldSocket(t *testing.T) {
	t.Parallel()
	needBPF(t)
	_, socket := serve(t, nil)
	ns := nstest.New(t)
	client, _ := tcpPair(t, ns)
	a := greetedIn(t, ns, socket)
	holdLock(t, int(client.Fd()))
	if got := a.attach(client); got.errno != 0 {
		t.Errorf("%+v", got)
	}
}

// While closes of a container's files wait, the broker has open the files of one reply to a
// session of it: there is no next one, and the session ends.
func TestReplyAwaitsClose(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	a := greeted(t, socket)
	name := a.must(message{op: opBind, engines: 1 << pipe.Unix, name: loopback})
	a.ask(message{op: opWake}) // before the answer, the bind's file is closed
	free := b.FillCloses()
	replies := 0
	for ; replies < 100; replies++ {
		if got := a.ask(message{op: opListen, id: name.id, arg: 4}); got.ended {
			break
		} else if got.errno != 0 {
			t.Fatal(got.errno)
		}
	}
	if replies != 1 {
		t.Errorf("%d replies, want 1", replies)
	}
	free()
	eventually(t, "all files are closed", func() bool { return b.Files() == 0 })
}
