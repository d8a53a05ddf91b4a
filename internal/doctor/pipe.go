package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/pipe"
)

// pipeCapabilities are what the pipe's broker uses. Without one of the first
// three there is no pipe, but everything else.
var pipeCapabilities = []capability{
	{
		name: "root", look: lookRoot,
		purpose: "load the program of the engine bpf and read the network namespaces of sockets",
		without: "no pipe",
	},
	{
		name: "namespaces", look: lookNetnsOf, needsRoot: true,
		purpose: "find the network namespace of a process that connects",
		without: "no pipe",
	},
	{
		name: "pidfd", look: lookPidfd,
		purpose: "hear of a process's death",
		without: "no pipe",
	},
	{
		name: "SO_PEERPIDFD", look: lookPeerPidfd,
		purpose: "know for certain which process has connected",
		without: "it is looked up by its number, which another one has if it ended in between",
	},
	{
		name: "bpf", look: lookSockopt, needsRoot: true,
		purpose: "the engine of that name, the default: a program that copies into rings that only receivers map",
		without: "no engine bpf",
	},
	{
		name: "cgroup 2", look: lookCgroup,
		purpose: "attach that program to the broker's own sockets",
		without: "no engine bpf",
	},
	{
		name: "sealed", look: lookSeals,
		purpose: "the engine of that name: memory that only its sender can write",
		without: "no engine sealed",
	},
	{
		name: "copy device", look: lookCopyDevice,
		purpose: "copy for the engine copier without a processor",
	},
	{
		name: "open files", look: lookFiles,
		purpose: "four for each connection, and up to four more until both ends have mapped their memory",
	},
}

// Pipe looks at what the pipe needs.
func Pipe() api.Doctor { return examineAll(thisHost(), pipeCapabilities) }

func lookSockopt(host) sight {
	if err := features.HaveProgramType(ebpf.CGroupSockopt); err != nil {
		return sight{fail, err.Error(), bpfRemedy(err)}
	}
	for _, helper := range []asm.BuiltinFunc{asm.FnProbeReadUser, asm.FnSkStorageGet, asm.FnLoop, asm.FnSetRetval} {
		if err := features.HaveProgramHelper(ebpf.CGroupSockopt, helper); err != nil {
			return sight{fail, fmt.Sprintf("%v: %v", helper, err), "run Linux 6.1 or newer"}
		}
	}
	return sight{ok, "programs at setsockopt have what it needs", ""}
}

func lookCgroup(h host) sight {
	mounts, err := h.read("/proc/self/mountinfo")
	if err != nil || !strings.Contains(mounts, " - cgroup2 ") {
		return sight{fail, "it is not mounted", "mount -t cgroup2 none /sys/fs/cgroup/unified"}
	}
	return sight{ok, "mounted", ""}
}

// lookCopyDevice asks the helper. What it finds was never measured.
func lookCopyDevice(host) sight {
	helper, err := pipe.FindCopyHelper()
	if err != nil {
		return sight{note, fmt.Sprintf("not measured; processors copy: %v", err), ""}
	}
	name, err := pipe.LookForDevice(helper)
	if err != nil {
		return sight{note, fmt.Sprintf("not measured; processors copy: %v", err), ""}
	}
	return sight{ok, name + ", not measured; used with pipe.copy_device", ""}
}

// lookNetnsOf asks for what the broker has to know of a process's socket.
func lookNetnsOf(host) sight {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return sight{fail, err.Error(), ""}
	}
	defer unix.Close(fd)
	if _, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return sight{fail, fmt.Sprintf("SO_NETNS_COOKIE: %v", err), newerKernel}
	}
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return sight{fail, fmt.Sprintf("SIOCGSKNS: %v", err), "give the service CAP_NET_ADMIN"}
	}
	unix.Close(ns)
	return sight{ok, "SO_NETNS_COOKIE and SIOCGSKNS work", ""}
}

func lookPidfd(host) sight {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return sight{fail, fmt.Sprintf("pidfd_open: %v", err), newerKernel}
	}
	unix.Close(fd)
	return sight{ok, "pidfd_open works", ""}
}

func lookPeerPidfd(host) sight {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return sight{note, err.Error(), ""}
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return sight{note, fmt.Sprintf("not there: %v", err), "run Linux 6.5 or newer"}
	}
	unix.Close(fd)
	return sight{ok, "there", ""}
}

func lookSeals(host) sight {
	fd, err := unix.MemfdCreate("scon-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return sight{fail, fmt.Sprintf("memfd_create: %v", err), newerKernel}
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		return sight{fail, fmt.Sprintf("F_SEAL_FUTURE_WRITE: %v", err), newerKernel}
	}
	if _, err := unix.Pwrite(fd, []byte{0}, 0); !errors.Is(err, unix.EPERM) {
		return sight{fail, fmt.Sprintf("a sealed file was written: %v", err), newerKernel}
	}
	return sight{ok, "memory was sealed", ""}
}

// manyFiles suffice for the paper's connections.
const manyFiles = 32768

func lookFiles(host) sight {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return sight{note, err.Error(), ""}
	}
	s := sight{ok, fmt.Sprintf("%d may be open", r.Max), ""}
	if r.Max < manyFiles {
		s.level, s.remedy = note, fmt.Sprintf("set LimitNOFILE=%d for the service", manyFiles)
	}
	return s
}
