package pipe_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/nstest"
)

// neighbours returns two namespaces joined by a veth pair, with 10.9.0.1 and 10.9.0.2.
func neighbours(t *testing.T) (one, two string) {
	one, two = nstest.New(t), nstest.New(t)
	nstest.Run(t, one, "ip link add v0 type veth peer name v1 netns "+two+`
		ip addr add 10.9.0.1/24 dev v0
		ip link set v0 up`)
	nstest.Run(t, two, `ip addr add 10.9.0.2/24 dev v1
		ip link set v1 up`)
	// The kernel may not send on a new device at once.
	for end := time.Now().Add(20 * time.Second); ; {
		err := netns.Do(one, func() error {
			conn, err := net.DialTimeout("tcp4", "10.9.0.2:1", time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if errors.Is(err, unix.ECONNREFUSED) {
			return one, two
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// role returns a side, server or client, of the library's test "reach" at 10.9.0.2:7000.
func role(t testing.TB, socket, role string) *exec.Cmd {
	t.Helper()
	return command(t, socket, "reach", "ENGINE=sealed", "ROLE="+role, "ADDR=10.9.0.2", "PORT=7000")
}

// startServer serves in a namespace until the test ends.
func startServer(t *testing.T, ns, socket string) {
	t.Helper()
	cmd := role(t, socket, "server")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
}

// reach connects from a namespace, and returns the client's errno.
func reach(t *testing.T, ns, socket string) unix.Errno {
	t.Helper()
	return reachBy(t, ns, role(t, socket, "client"))
}

func reachBy(t *testing.T, ns string, cmd *exec.Cmd) unix.Errno {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if out.Len() == 0 {
		return 0
	}
	n, err := strconv.Atoi(out.String())
	if err != nil {
		t.Fatal(out.String())
	}
	return unix.Errno(n)
}

// The broker allows a connection if and only if the network does.
func TestNetworkDecides(t *testing.T) {
	t.Parallel()
	b, socket := serve(t, nil)
	one, two := neighbours(t)
	unconnected := nstest.New(t)
	startServer(t, two, socket)
	if err := reach(t, one, socket); err != 0 {
		t.Fatalf("open: %v", err)
	}
	if err := reach(t, two, socket); err != 0 {
		t.Errorf("within one namespace: %v", err)
	}
	if err := reach(t, unconnected, socket); err != unix.ENETUNREACH {
		t.Errorf("without a route: %v", err)
	}
	nstest.Run(t, two, `nft add table ip f
		nft add chain ip f in { type filter hook input priority 0 ; }
		nft add rule ip f in tcp dport 7000 iifname v1 reject with icmp type admin-prohibited`)
	if err := reach(t, one, socket); err != unix.EHOSTUNREACH {
		t.Errorf("rejected: %v", err)
	}
	nstest.Run(t, two, `nft flush chain ip f in
		nft add rule ip f in tcp dport 7000 iifname v1 drop`)
	if err := reach(t, one, socket); err != unix.ETIMEDOUT {
		t.Errorf("dropped: %v", err)
	}
	nstest.Run(t, two, "nft delete table ip f")
	if err := reach(t, one, socket); err != 0 {
		t.Errorf("open again: %v", err)
	}
	// The kernel has refused the client's own TCP connection.
	if n := b.Status().Refused["network"]; n != 0 {
		t.Errorf("%d refusals counted", n)
	}
}

// A client that connects to a TCP server that is not a name of the pipe is refused.
func TestOtherServer(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	one, two := neighbours(t)
	var l net.Listener
	err := netns.Do(two, func() (err error) {
		l, err = net.Listen("tcp4", "10.9.0.2:7000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// A name with that port exists elsewhere, so the broker sends a token.
	c := greeted(t, socket)
	name := c.must(message{op: opBind, engines: 2, name: netip.MustParseAddrPort("127.0.0.1:7000")})
	c.must(message{op: opListen, id: name.id})
	if err := reach(t, one, socket); err != unix.ECONNREFUSED {
		t.Error(err)
	}
}

// The operator's list applies in addition to the network's rules.
func TestAllowList(t *testing.T) {
	t.Parallel()
	one, two := neighbours(t)
	for list, want := range map[string]unix.Errno{"10.9.0.0/24": 0, "10.9.0.2/32": unix.EACCES} {
		_, socket := serve(t, func(o *pipe.Options) { o.Allow = []netip.Prefix{netip.MustParsePrefix(list)} })
		t.Run(list, func(t *testing.T) {
			startServer(t, two, socket)
			if err := reach(t, one, socket); err != want {
				t.Errorf("%v, want %v", err, want)
			}
			if err := reach(t, two, socket); err != 0 {
				t.Errorf("within the group: %v", err)
			}
		})
	}
}

// An engine that the operator does not list is used by no connection, whoever asks for it.
func TestEnginesForbidden(t *testing.T) {
	t.Parallel()
	for _, forbidden := range engines(t) {
		t.Run(forbidden.String(), func(t *testing.T) {
			t.Parallel()
			var others []pipe.Engine
			all := uint32(1) << forbidden
			for _, e := range engines(t) {
				if e != forbidden {
					others = append(others, e)
					all |= 1 << e
				}
			}
			b, socket := serve(t, func(o *pipe.Options) { o.Engines = others })
			server := greeted(t, socket)
			for _, accepts := range []uint32{1 << forbidden, all} {
				name := server.must(message{op: opBind, engines: accepts, name: loopback})
				server.must(message{op: opListen, id: name.id, arg: 4})
				to := netip.AddrPortFrom(loopback.Addr(), name.port)
				got := greeted(t, socket).ask(message{op: opConnect, engines: 1 << forbidden, name: to})
				if got.errno != unix.EPROTONOSUPPORT || len(got.files) > 0 {
					t.Errorf("a client that wants %v: %+v", forbidden, got)
				}
				if accepts == all {
					if got := greeted(t, socket).must(message{op: opConnect, engines: all, name: to}); pipe.Engine(got.engine) == forbidden {
						t.Errorf("a client that accepts all engines: %+v", got)
					}
				}
			}
			if n := b.Status().Refused["engine"]; n != 2 {
				t.Errorf("%d refused, want 2", n)
			}
			if forbidden == pipe.BPF { // what scon run uses
				ns := nstest.New(t)
				client, _ := tcpPair(t, ns)
				if got := greetedIn(t, ns, socket).attach(client); got.errno != unix.EPROTONOSUPPORT {
					t.Errorf("an attachment: %+v", got)
				}
			}
		})
	}
}

// ruled is a process of the library's test "ruled".
type ruled struct {
	*exec.Cmd
	t   *testing.T
	out *bufio.Scanner
}

// startRuled starts the test "ruled" and waits until it is ready.
func startRuled(t *testing.T, ns, socket string, env ...string) ruled {
	t.Helper()
	return startRuledAs(t, ns, socket, nil, env...)
}

func startRuledAs(t *testing.T, ns, socket string, as *syscall.SysProcAttr, env ...string) ruled {
	t.Helper()
	cmd := command(t, socket, "ruled", append(env, "ADDR=10.9.0.2", "PORT=7000")...)
	cmd.SysProcAttr = as
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(ns, cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := ruled{cmd, t, bufio.NewScanner(out)}
	p.says("ready")
	return p
}

// says reads a line, and fails unless it is want.
func (p ruled) says(want string) {
	p.t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		p.t.Fatalf("the program printed %q, want %q", p.out.Text(), want)
	}
}

// A connection is reset when the rules no longer allow it, and not before, whether or not its
// name still exists.
func TestRulesChange(t *testing.T) {
	t.Parallel()
	one, two := neighbours(t)
	for _, engine := range engines(t) {
		for _, closes := range []bool{false, true} {
			b, socket := serve(t, nil)
			env := []string{"ENGINE=" + engine.String()}
			if closes {
				env = append(env, "CLOSE=1")
			}
			t.Run(fmt.Sprintf("%v/%v", engine, closes), func(t *testing.T) {
				server := startRuled(t, two, socket, append(env, "ROLE=server")...)
				client := startRuled(t, one, socket, append(env, "ROLE=client")...)
				b.RecheckNow()
				if s := b.Status(); len(s.Connections) != 1 || s.Connections[0].Over {
					t.Fatalf("open: %+v", s)
				}
				nstest.Run(t, two, `nft add table ip f
					nft add chain ip f in { type filter hook input priority 0 ; }
					nft add rule ip f in tcp dport 7000 iifname v1 reject with icmp type admin-prohibited`)
				b.Recheck()
				for _, p := range []ruled{server, client} {
					p.says(strconv.Itoa(int(unix.ECONNRESET)))
					if err := p.Wait(); err != nil {
						t.Error(err)
					}
				}
				if n := b.Status().Refused["rules changed"]; n != 1 {
					t.Errorf("%d counted", n)
				}
				nstest.Run(t, two, "nft delete table ip f")
			})
		}
	}
}

// A new name at the address of a closed name does not affect the connections of the closed
// one.
func TestNameTakenAgain(t *testing.T) {
	t.Parallel()
	one, two := neighbours(t)
	b, socket := serve(t, nil)
	server := startRuled(t, two, socket, "ENGINE=unix", "ROLE=server", "CLOSE=1")
	client := startRuled(t, one, socket, "ENGINE=unix", "ROLE=client")
	startServer(t, two, socket)
	b.RecheckNow()
	if s := b.Status(); len(s.Connections) != 1 || s.Connections[0].Over {
		t.Errorf("%+v", s)
	}
	for _, p := range []ruled{server, client} {
		if err := p.Process.Kill(); err != nil {
			t.Error(err)
		}
	}
}
