package pipe_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// silent are policies that the kernel does not announce to the broker. put puts one in force
// for the processes of a cgroup in a namespace; remove takes it back.
var silent = []struct {
	name string
	put  func(t *testing.T, ns string, group *os.File) (remove func())
}{
	{"IPAddressDeny", dropByCgroup},
	{"owner", func(t *testing.T, ns string, _ *os.File) func() {
		return putRule(t, ns, fmt.Sprintf("meta skgid %d", rulesGroup))
	}},
	{"cgroup", func(t *testing.T, ns string, group *os.File) func() {
		return putRule(t, ns, fmt.Sprintf("socket cgroupv2 level 1 %q", filepath.Base(group.Name())))
	}},
}

// rulesGroup is the group of the processes that the policies are about.
const rulesGroup = 4242

// dropByCgroup attaches a program to a cgroup that drops its packets, as systemd's
// IPAddressDeny=any does.
func dropByCgroup(t *testing.T, _ string, group *os.File) (remove func()) {
	t.Helper()
	drop, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer drop.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: group.Name(), Attach: ebpf.AttachCGroupInetEgress, Program: drop})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// putRule drops what a match selects of what the namespace sends. nft looks for cgroups
// below /sys/fs/cgroup.
func putRule(t *testing.T, ns, match string) (remove func()) {
	t.Helper()
	rule := "add table ip f; add chain ip f out { type filter hook output priority 0 ; }; add rule ip f out meta l4proto tcp " + match + " drop"
	out, err := exec.Command("ip", "netns", "exec", ns, "sh", "-c", `mount -t cgroup2 none /sys/fs/cgroup && nft "$1"`, "sh", rule).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func() { nstest.Run(t, ns, "nft delete table ip f") }
}

// subject returns the attributes of a process that the policies are about.
func subject(group *os.File) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Credential: &syscall.Credential{Gid: rulesGroup}}
}

// A policy about the client that is in force before it connects prevents the connection, as
// the TCP connection is the client's own. One that comes later, without a word to the broker,
// ends it.
func TestSilentPolicy(t *testing.T) {
	t.Parallel()
	for _, p := range silent {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			group := testCgroup(t)
			one, two := neighbours(t)
			for _, engine := range engines(t) {
				b, socket := serve(t, nil)
				server := startRuled(t, two, socket, "ENGINE="+engine.String(), "ROLE=server")
				client := startRuledAs(t, one, socket, subject(group), "ENGINE="+engine.String(), "ROLE=client")
				b.AllAged()
				eventually(t, "the proofs", func() bool { return !b.Proving() })
				if s := b.Status(); len(s.Connections) != 1 || s.Connections[0].Over {
					t.Fatalf("%v, without the policy: %+v", engine, s)
				}
				remove := p.put(t, one, group)
				b.AllAged()
				for _, end := range []ruled{server, client} {
					end.says(strconv.Itoa(int(unix.ECONNRESET)))
					if err := end.Wait(); err != nil {
						t.Error(err)
					}
				}
				remove()
			}
			_, socket := serve(t, nil)
			startServer(t, two, socket)
			remove := p.put(t, one, group)
			if err := reachAs(t, one, socket, subject(group)); err != unix.ETIMEDOUT && err != unix.EPERM {
				t.Errorf("a client that it stops: %v", err)
			}
			if err := reach(t, one, socket); err != 0 {
				t.Errorf("another client: %v", err)
			}
			remove()
			if err := reachAs(t, one, socket, subject(group)); err != 0 {
				t.Errorf("the client without it: %v", err)
			}
		})
	}
}

// The same for connections of unmodified programs: they get no ring before the policy goes,
// then the stream goes on, complete.
func TestRunSilentPolicy(t *testing.T) {
	t.Parallel()
	needBPF(t)
	for _, p := range silent {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			group := testCgroup(t)
			one, two := neighbours(t)
			b, socket := serve(t, nil)
			server := startEnd(t, two, socket, "duplex")
			client := startEndAs(t, one, socket, subject(group), "duplex", server.says(t))
			awaitMore(t, b, 1)
			remove := p.put(t, one, group)
			b.AllAged()
			eventually(t, "the end of the rings", func() bool { return len(b.Status().Connections) == 0 })
			byRings := b.Status().SentBytes
			time.Sleep(3 * time.Second)
			if s := b.Status(); s.Made != 1 || s.SentBytes != byRings {
				t.Errorf("%d connections, %d bytes by rings after %d", s.Made, s.SentBytes, byRings)
			}
			remove()
			awaitMore(t, b, 2)
			endDuplex(t, client, server, func() {})
		})
	}
}

// Landlock's rights over networks, of linux/landlock.h.
const (
	landlockBindTCP    = 1 << 0
	landlockConnectTCP = 1 << 1
	landlockNetworks   = 4 // the version of its interface that has them
)

// denied returns a command that Landlock, a security module, denies rights.
func denied(t *testing.T, rights int, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
	if errno != 0 || version < landlockNetworks {
		t.Skipf("missing: Landlock's rights over networks (Linux 6.7): version %d, %v", int(version), errno)
	}
	cmd.Args, cmd.Path = append([]string{os.Args[0]}, cmd.Args...), os.Args[0]
	cmd.Env = append(cmd.Env, "SCON_TEST_DENIED="+strconv.Itoa(rights))
	return cmd
}

// runDenied is the process of denied.
func runDenied(rights string) int {
	handled, err := strconv.ParseUint(rights, 10, 64)
	attr := binary.NativeEndian.AppendUint64(make([]byte, 8), handled)
	runtime.LockOSThread()
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)), 0)
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0)
	}
	if err == nil && errno == 0 {
		err = unix.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, errors.Join(err, errno))
	return 1
}

// A security module decides about a process's own sockets: the process cannot bind or connect
// where the module does not let it.
func TestSecurityModule(t *testing.T) {
	t.Parallel()
	_, socket := serve(t, nil)
	one, two := neighbours(t)
	var out strings.Builder
	server := denied(t, landlockBindTCP, role(t, socket, "server"))
	server.Stderr = &out
	if err := netns.Do(two, server.Start); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err == nil || !strings.Contains(out.String(), "pd_bind") {
		t.Errorf("bind: %v, %s", err, out.String())
	}
	startServer(t, two, socket)
	if err := reachBy(t, one, denied(t, landlockConnectTCP, role(t, socket, "client"))); err != unix.EACCES {
		t.Errorf("connect: %v", err)
	}
	if err := reach(t, one, socket); err != 0 {
		t.Errorf("a client that may: %v", err)
	}
}
