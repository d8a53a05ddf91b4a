package pipebench

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/internal/pipe/copier"
)

// mode is a transport between two processes.
type mode struct {
	name string
	// transport is its name in the programs' addresses: examples/transport.h.
	transport string
	// alone puts both ends into one container.
	alone bool
	// sockmap has the kernel pass sent data directly to the other end.
	sockmap bool
	// run runs the programs, which only use TCP, with 'scon run'.
	run bool
	// bare transports support a single stream and busy-wait.
	bare bool
	// refusesApps: the applications are not measured.
	refusesApps bool
	// device: the broker copies with a device.
	device bool
	// files of a connection that one process has open at most: a program its socket, the
	// broker both ends' sockets and doorbells, and with a device all rings, for its helper.
	files int
	// needs are capabilities of 'scon pipe doctor'.
	needs []string
}

// modes in the order of tables: those without the pipe first.
var modes = []mode{
	{name: "tcp_bridge", files: 1, transport: "tcp"},
	{name: "tcp_loopback", files: 1, transport: "tcp", alone: true, refusesApps: true},
	{name: "unix", files: 1, transport: "unix"},
	{name: "memory", transport: "memory", bare: true, refusesApps: true},
	{name: "sockmap", files: 1, transport: "tcp", sockmap: true, refusesApps: true},
	{name: "bpf", files: 4, transport: "bpf", needs: []string{"bpf", "cgroup 2"}},
	{name: "copier", files: 4, transport: "copier"},
	{name: "copier_device", files: 8, transport: "copier", device: true},
	{name: "sealed", files: 4, transport: "sealed", needs: []string{"sealed"}},
	{name: "auto", files: 4, transport: "pipe"},
	{name: "run_posix", files: 2, transport: "tcp", run: true, needs: []string{"bpf", "cgroup 2"}},
}

// ModeNames returns the modes' names in order.
func ModeNames(apps bool) (names []string) {
	for _, m := range modes {
		if !m.refusesApps || !apps {
			names = append(names, m.name)
		}
	}
	return names
}

// modeOf returns the mode of a name.
func modeOf(name string) mode {
	return modes[slices.IndexFunc(modes, func(m mode) bool { return m.name == name })]
}

func contains(names []string, name string) bool { return slices.Contains(names, name) }

// spareFiles are what a process has open besides connections.
const spareFiles = 512

// tooManyFiles returns an error if a process may not open the files of all connections.
func (m mode) tooManyFiles(connections int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if need := uint64(m.files*connections + spareFiles); need > limit.Max {
		return fmt.Errorf("%d connections take %d open files of a process, which may have %d; raise the limit (ulimit -Hn)",
			connections, need, limit.Max)
	}
	return nil
}

// isBaseline reports whether the mode is there to compare the pipe with.
func (m mode) isBaseline() bool {
	return slices.Contains([]string{"tcp_bridge", "tcp_loopback", "unix", "memory", "sockmap"}, m.name)
}

// missing returns why this machine does not support a mode, nil if it does.
func (m mode) missing() error {
	if m.sockmap {
		if err := features.HaveProgramType(ebpf.SkMsg); err != nil {
			return fmt.Errorf("programs at sk_msg: %w", err)
		}
	}
	if m.device {
		if _, err := copier.FindDevice(); err != nil {
			return err
		}
	}
	if m.run {
		if _, err := programs.FindLibrary(runLibrary); err != nil {
			return err
		}
	}
	if len(m.needs) == 0 {
		return nil
	}
	for _, c := range doctor.Pipe(copier.FindDevice).Capabilities {
		if slices.Contains(append(m.needs, "root", "namespaces", "pidfd"), c.Name) && c.Level == "fail" {
			return errors.New(c.Name + ": " + c.Found + "; see 'scon pipe doctor'")
		}
	}
	return nil
}
