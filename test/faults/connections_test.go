package faults

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Tens of thousands of connections, short ones and express ones, leave nothing in the
// maps or in the daemon.
func TestConnectionsComeAndGo(t *testing.T) {
	const clients, servers = 8, 8
	each := long(20_000, 100_000) / clients
	b := newExpress(t, scontest.Layout{Offload: true, Config: func(c *config.Config) {
		*c = config.Default()
		c.Admit, c.PerContainerShare = 4, 100
	}})
	b.Outgoing("tcp", 1).GoExpress().Close()
	answers := make([]unix.Sockaddr, servers)
	for i := range answers {
		answers[i] = startAnswers(b)
	}
	run := func(each int) {
		var all sync.WaitGroup
		errs := make([]error, clients)
		for i := range clients {
			all.Go(func() {
				errs[i] = b.Do(lab.Container(1), func() (err error) {
					for j := 0; j < each && err == nil; j++ {
						err = useOnce(answers[(i+j)%servers], j)
					}
					return err
				})
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	run(each / 10)
	held, resident := settled(b), b.Daemon.Resident()
	run(each)
	wantHeld(b, settled, held)
	now := b.Daemon.Resident()
	express := b.Status().Totals.ExpressPackets
	t.Logf("%d connections, %d packets express, %d MB resident, before %d", clients*each, express, now>>20, resident>>20)
	if now > resident+4<<20 {
		t.Errorf("the daemon uses %d MB, before %d", now>>20, resident>>20)
	}
	if express < uint64(each) {
		t.Errorf("only %d packets went express", express)
	}
	b.WantNoInvalid()
}

// useOnce opens a connection, exchanges some bytes and closes it in one of
// three manners. It blocks in system calls, so that no other goroutine gets its
// thread.
func useOnce(to unix.Sockaddr, n int) (err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	patience := unix.NsecToTimeval(scontest.Patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return err
	}
	if err := unix.Connect(fd, to); err != nil {
		return err
	}
	words := 1
	if n%4 == 0 {
		words = 12 // enough to become express
	}
	buf := make([]byte, 16)
	for range words {
		if _, err := unix.Write(fd, buf); err != nil {
			return err
		}
		if got, err := unix.Read(fd, buf); err != nil || got != len(buf) {
			return fmt.Errorf("read %d bytes: %w", got, err)
		}
	}
	switch n / 4 % 3 {
	case 0:
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // a RST
	case 1:
		return unix.Shutdown(fd, unix.SHUT_WR)
	}
	return nil
}

// startAnswers echoes TCP streams at edge until the test ends.
func startAnswers(b *scontest.Bed) (at unix.Sockaddr) {
	b.T.Helper()
	err := b.Do(lab.Edge, func() error {
		l, err := net.Listen("tcp4", lab.EdgeAddr.String()+":0")
		if err != nil {
			return err
		}
		at = &unix.SockaddrInet4{Addr: lab.EdgeAddr.As4(), Port: int(scontest.PortOf(l.Addr()))}
		b.T.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = io.Copy(c, c)
				}()
			}
		}()
		return nil
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return at
}

// settled waits until no connection has a Conentry or a slot, and counts the
// daemon's file descriptors.
func settled(b *scontest.Bed) map[string]int {
	b.T.Helper()
	scontest.Eventually(b.T, "the table is empty", func() error {
		if n := b.Status().Totals.Entries; n > 0 {
			return fmt.Errorf("%d Conentries", n)
		}
		taken := 0
		scontest.EachHalf(b.T, b.Pinned("conentries"), func(h datapath.Half) {
			if h.State != datapath.SlotEmpty {
				taken++
			}
		})
		if taken > 0 {
			return fmt.Errorf("%d slots", taken)
		}
		return nil
	})
	return files(b)
}
