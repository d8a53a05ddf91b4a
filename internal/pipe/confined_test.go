package pipe_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confine has the kernel kill this process when it enters or makes a namespace, mounts
// something or takes files or memory of other processes. All brokers of startBroker run so.
func confine() error {
	const number, flags = 0, 16 // in struct seccomp_data; the first argument of clone
	low := uint32(flags)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		low += 4
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	verdict := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	// skip jumps over the next instructions unless what was loaded is value.
	skip := func(value uint32, n uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: n}
	}
	program := []unix.SockFilter{load(number)}
	for _, call := range []uint32{
		unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_PIDFD_GETFD, unix.SYS_PTRACE,
		unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
	} {
		program = append(program, skip(call, 1), verdict(unix.SECCOMP_RET_KILL_PROCESS))
	}
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	program = append(program,
		skip(unix.SYS_CLONE, 3), load(low),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: namespaces, Jf: 1},
		verdict(unix.SECCOMP_RET_KILL_PROCESS),
		verdict(unix.SECCOMP_RET_ALLOW))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("confine the broker: %w", errno)
	}
	return nil
}

// enter enters this process's own network namespace: a confined process dies.
func enter() int {
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err == nil {
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
	}
	fmt.Fprintln(os.Stderr, "not confined:", err)
	return 1
}

// The kernel kills a confined process that enters a namespace.
func TestConfined(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SCON_TEST_ENTER=yes")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
		t.Errorf("want SIGSYS: %v: %s", err, out)
	}
}
