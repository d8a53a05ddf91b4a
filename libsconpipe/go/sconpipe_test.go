//go:build cgo

package sconpipe_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/copier"
	sconpipe "github.com/scon-project/scon/libsconpipe/go"
)

// The first thread stays where it is: its network namespace is what the broker
// takes for the process's.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run runs the tests in a network namespace of their own, with a broker.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sconpipe-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	b, err := serve(filepath.Join(dir, "p"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := gone(b); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := b.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func serve(socket string) (*pipe.Broker, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("set lo up: %w", err)
	}
	if err := os.Setenv("SCON_PIPE_SOCKET", socket); err != nil {
		return nil, err
	}
	return pipe.New(pipe.Options{Socket: socket, MemoryLimit: 1 << 30, Copier: copier.New(""), Logger: slog.New(slog.DiscardHandler)})
}

// gone waits until nothing is left of the tests' connections.
func gone(b *pipe.Broker) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		s := b.Status()
		if len(s.Connections) == 0 && len(s.Names) == 0 && s.MemoryBytes == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("something is left: %+v", s)
		}
	}
}

// pair makes a connection and returns both of its ends.
func pair(config sconpipe.Config) (client, server net.Conn, err error) {
	l, err := config.Listen("127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	client, err = config.Dial(l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	server, err = l.Accept()
	return client, server, err
}

func newPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	client, server, err := pair(sconpipe.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// What every net.Conn has to do, with each engine.
func TestConn(t *testing.T) {
	for name, engine := range map[string]sconpipe.Engine{"bpf": sconpipe.BPF, "copier": sconpipe.Copier, "sealed": sconpipe.Sealed, "unix": sconpipe.Unix} {
		t.Run(name, func(t *testing.T) {
			config := sconpipe.Config{Engines: []sconpipe.Engine{engine}}
			client, server, err := pair(config)
			if errors.Is(err, syscall.EPROTONOSUPPORT) {
				t.Skip("this machine has no such engine")
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := client.(*sconpipe.Conn).Engine(); got != engine || err != nil {
				t.Errorf("the engine is %v, %v", got, err)
			}
			client.Close()
			server.Close()
			nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
				a, b, err = pair(config)
				return a, b, func() { a.Close(); b.Close() }, err
			})
		})
	}
}

// More bytes than a ring has go through, and come as they were.
func TestBulk(t *testing.T) {
	client, server := newPair(t)
	sent := make([]byte, 16<<20)
	for i := range sent {
		sent[i] = byte(i * 2654435761 >> 13)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if n, err := client.Write(sent); n != len(sent) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if err := client.(*sconpipe.Conn).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(server)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came, equal %v: %v", len(got), bytes.Equal(got, sent), err)
	}
	wg.Wait()
	// The other direction is open still.
	if _, err := io.WriteString(server, "thanks"); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if answer, err := io.ReadAll(client); string(answer) != "thanks" || err != nil {
		t.Errorf("%q, %v", answer, err)
	}
	if _, err := client.Write(sent[:1]); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a write without a reader: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	client, server := newPair(t)
	if client.RemoteAddr() != server.LocalAddr() || client.LocalAddr() != server.RemoteAddr() {
		t.Errorf("%v to %v, and %v to %v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
	}
	if a := client.RemoteAddr(); a.Network() != "pipe" || !strings.HasPrefix(a.String(), "127.0.0.1:") {
		t.Errorf("%s %s", a.Network(), a)
	}
}

func TestListener(t *testing.T) {
	l, err := sconpipe.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.SetDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nobody came: %v", err)
	}
	if err := l.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener was closed: %v", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := sconpipe.Dial(l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestWrongAddress(t *testing.T) {
	for _, address := range []string{"", "localhost:7000", "10.0.0.1", "[::1]:7000"} {
		if _, err := sconpipe.Dial(address); err == nil || !strings.Contains(err.Error(), "want an IPv4 address and a port") {
			t.Errorf("dial %q: %v", address, err)
		}
		if _, err := sconpipe.Listen(address); err == nil || !strings.Contains(err.Error(), "want an IPv4 address and a port") {
			t.Errorf("listen %q: %v", address, err)
		}
	}
}

// Every source of the library is built in.
func TestSources(t *testing.T) {
	sources, err := filepath.Glob("../src/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	for _, source := range sources {
		text, err := os.ReadFile("lib_" + filepath.Base(source))
		if err != nil || !bytes.Contains(text, []byte(`#include "`+source+`"`)) {
			t.Errorf("%s is not built in: %v", source, err)
		}
	}
}
