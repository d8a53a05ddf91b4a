package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
)

// pipeCapabilities are the features that the pipe's broker uses. The first three
// are required; SCON works without the pipe.
var pipeCapabilities = []capability{
	{
		name: "root", check: checkRoot,
		purpose: "load the program of the engine bpf and read the network namespaces of sockets",
		without: "no pipe",
	},
	{
		name: "namespaces", check: checkNetnsOf, needsRoot: true,
		purpose: "find the network namespace of a connecting process",
		without: "no pipe",
	},
	{
		name: "pidfd", check: checkPidfd,
		purpose: "be notified of the end of a process",
		without: "no pipe",
	},
	{
		name: "SO_PEERPIDFD", check: checkPeerPidfd,
		purpose: "identify the connecting process without a race",
		without: "the process is identified by its PID, which may have been reused",
	},
	{
		name: "bpf", check: checkSockopt, needsRoot: true,
		purpose: "the engine bpf, the default: a program copies into rings that only receivers map",
		without: "no engine bpf",
	},
	{
		name: "cgroup 2", check: checkCgroup,
		purpose: "attach the program of the engine bpf to the broker's sockets",
		without: "no engine bpf",
	},
	{
		name: "sealed", check: checkSeals,
		purpose: "the engine sealed: memory that only its sender can write",
		without: "no engine sealed",
	},
	{
		name:    "copy device", // check: see Pipe
		purpose: "the engine copier: copy without a processor",
	},
	{
		name: "open files", check: checkFiles,
		purpose: "four for each connection, and up to four more until both ends have mapped their memory",
	},
}

// Pipe checks what the pipe needs. Device finds the device that copies for the engine
// copier.
func Pipe(device func() (name string, err error)) api.Doctor {
	all := slices.Clone(pipeCapabilities)
	for i := range all {
		if all[i].check == nil {
			all[i].check = func(host) result { return checkCopyDevice(device) }
		}
	}
	return examineAll(thisHost(), all)
}

func checkSockopt(host) result {
	if err := features.HaveProgramType(ebpf.CGroupSockopt); err != nil {
		return result{fail, err.Error(), bpfRemedy(err)}
	}
	for _, helper := range []asm.BuiltinFunc{asm.FnProbeReadUser, asm.FnSkStorageGet, asm.FnLoop, asm.FnSetRetval} {
		if err := features.HaveProgramHelper(ebpf.CGroupSockopt, helper); err != nil {
			return result{fail, fmt.Sprintf("%v: %v", helper, err), "run Linux 6.1 or newer"}
		}
	}
	return result{ok, "programs at setsockopt have the helpers that it needs", ""}
}

func checkCgroup(h host) result {
	mounts, err := h.read("/proc/self/mountinfo")
	if err != nil || !strings.Contains(mounts, " - cgroup2 ") {
		return result{fail, "not mounted", "mount -t cgroup2 none /sys/fs/cgroup/unified"}
	}
	return result{ok, "mounted", ""}
}

// checkCopyDevice reports the device.
func checkCopyDevice(device func() (string, error)) result {
	name, err := device()
	if err != nil {
		return result{note, fmt.Sprintf("none, processors copy: %v", err), ""}
	}
	return result{ok, name + ", used with pipe.copy_device", ""}
}

// checkNetnsOf reads what the broker needs to know of a process's socket.
func checkNetnsOf(host) result {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return result{fail, err.Error(), ""}
	}
	defer unix.Close(fd)
	if _, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return result{fail, fmt.Sprintf("SO_NETNS_COOKIE: %v", err), newerKernel}
	}
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return result{fail, fmt.Sprintf("SIOCGSKNS: %v", err), "give the service CAP_NET_ADMIN"}
	}
	unix.Close(ns)
	return result{ok, "SO_NETNS_COOKIE and SIOCGSKNS work", ""}
}

func checkPidfd(host) result {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return result{fail, fmt.Sprintf("pidfd_open: %v", err), newerKernel}
	}
	unix.Close(fd)
	return result{ok, "pidfd_open works", ""}
}

func checkPeerPidfd(host) result {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return result{note, err.Error(), ""}
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return result{note, fmt.Sprintf("not available: %v", err), "run Linux 6.5 or newer"}
	}
	unix.Close(fd)
	return result{ok, "available", ""}
}

func checkSeals(host) result {
	fd, err := unix.MemfdCreate("scon-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return result{fail, fmt.Sprintf("memfd_create: %v", err), newerKernel}
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		return result{fail, fmt.Sprintf("F_SEAL_FUTURE_WRITE: %v", err), newerKernel}
	}
	if _, err := unix.Pwrite(fd, []byte{0}, 0); !errors.Is(err, unix.EPERM) {
		return result{fail, fmt.Sprintf("a sealed file could be written: %v", err), newerKernel}
	}
	return result{ok, "memory was sealed", ""}
}

// manyFiles are enough for the 4096 connections of 'scon pipe bench'.
const manyFiles = 32768

func checkFiles(host) result {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return result{note, err.Error(), ""}
	}
	s := result{ok, fmt.Sprintf("%d may be open", r.Max), ""}
	if r.Max < manyFiles {
		s.level, s.remedy = note, fmt.Sprintf("set LimitNOFILE=%d for the service", manyFiles)
	}
	return s
}
