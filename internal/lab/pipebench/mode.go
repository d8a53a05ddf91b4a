package pipebench

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/internal/pipe/copier"
)

// mode is a way of two processes to exchange bytes.
type mode struct {
	name string
	// way is what the programs call it: examples/way.h.
	way string
	// alone puts both ends into one container.
	alone bool
	// sockmap has the kernel take what is sent straight to the other end.
	sockmap bool
	// run has the programs, which know TCP only, run by 'scon run'.
	run bool
	// bare: no more than one stream can be, and it looks all the time.
	bare bool
	// refusesApps: the applications are not measured in it.
	refusesApps bool
	// needs are capabilities of 'scon pipe doctor'.
	needs []string
}

// modes in the order of tables: those without the pipe first.
var modes = []mode{
	{name: "tcp_bridge", way: "tcp"},
	{name: "tcp_loopback", way: "tcp", alone: true, refusesApps: true},
	{name: "unix", way: "unix"},
	{name: "memory", way: "memory", bare: true, refusesApps: true},
	{name: "sockmap", way: "tcp", sockmap: true, refusesApps: true},
	{name: "bpf", way: "bpf", needs: []string{"bpf", "cgroup 2"}},
	{name: "copier", way: "copier"},
	{name: "sealed", way: "sealed", needs: []string{"sealed"}},
	{name: "auto", way: "pipe"},
	{name: "run_posix", way: "tcp", run: true, needs: []string{"bpf", "cgroup 2"}},
}

// ModeNames in their order.
func ModeNames(apps bool) (names []string) {
	for _, m := range modes {
		if !m.refusesApps || !apps {
			names = append(names, m.name)
		}
	}
	return names
}

// modeOf a name.
func modeOf(name string) mode {
	return modes[slices.IndexFunc(modes, func(m mode) bool { return m.name == name })]
}

func contains(names []string, name string) bool { return slices.Contains(names, name) }

// missing says why this machine cannot do a mode, nil if it can.
func (m mode) missing() error {
	if m.sockmap {
		if err := features.HaveProgramType(ebpf.SkMsg); err != nil {
			return fmt.Errorf("programs at sk_msg: %w", err)
		}
	}
	if m.run {
		if _, err := programs.Find(runLibrary); err != nil {
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
