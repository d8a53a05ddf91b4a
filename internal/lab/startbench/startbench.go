// Package startbench measures how soon containers that start at the same time
// are up, with different networks (paper: "Understanding Network Startup for
// Secure Containers in Multi-Tenant Clouds", Fig. 6 to 8, 15, 18 and 20,
// Table 3).
//
// The way of a sample:
//
//  1. Ready makes a mode ready in a network namespace of the bench's own: the
//     CNI list, SCON's agent with a full pool, and the launcher, a process in a
//     cgroup with a high share of the CPUs (package launch).
//  2. Take has the launcher start N containers at once. It ends when the last
//     of them is up and has answered the peer's ping. Meanwhile the contended
//     locks are counted, and the processor time of the cgroup.
//  3. The containers are removed, and the kernel is waited for until it has
//     taken their namespaces apart: the next sample does not pay for this one.
package startbench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/scon-project/scon/internal/lab/bench"
)

// Launchers and runtimes.
const (
	LauncherDirect = "direct"
	LauncherCRI    = "cri"
	RuntimeRunc    = "runc"
	RuntimeRunsc   = "runsc"
	RuntimeMicroVM = "microvm"
)

// Launchers and Runtimes in the order of help and documents.
var (
	Launchers = []string{LauncherDirect, LauncherCRI}
	Runtimes  = []string{RuntimeRunc, RuntimeRunsc, RuntimeMicroVM}
)

// Options of a run.
type Options struct {
	Launcher, Runtime string
	Modes             []Mode
	// Count of containers that start at once.
	Count int
	// Steps to measure, by their names; none means Start and Add.
	Steps []string
	// Limits of the stages, for modes with Admission.
	Limits Limits
	// Rounds, and who is told about progress.
	Rounds   int
	Progress bench.Progress
}

// Check tells what is wrong with the options, or missing on this machine.
func (o Options) Check() error {
	if o.Launcher == LauncherCRI && o.Runtime == RuntimeMicroVM {
		return errors.New("no engine here starts a QEMU microVM over CRI: use the direct launcher")
	}
	if o.Launcher == LauncherCRI && o.Runtime == RuntimeRunsc {
		return errors.New("containerd starts gVisor with a shim that Debian has not (containerd-shim-runsc-v1): use the direct launcher")
	}
	for _, m := range o.Modes {
		if m.OCI && (o.Launcher == LauncherCRI || o.Runtime == RuntimeMicroVM) {
			return fmt.Errorf("network %q: scon-oci is for the direct launcher with runc or runsc", m.Name)
		}
	}
	return o.missing()
}

// Run measures. It returns a result whenever there are samples, see bench.Run.
func Run(ctx context.Context, o Options) (*bench.Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	e := o.experiment()
	result, err := bench.RunBed(ctx, e, bench.Options{Rounds: o.Rounds, Progress: o.Progress}, func() (bench.Bed, error) {
		return openBed(ctx, o)
	})
	if result != nil {
		keepTypical(result)
	}
	return result, err
}

// missing tells which programs are, and how to come by them.
func (o Options) missing() error {
	needed := map[string]string{"busybox": "apt-get install busybox-static"}
	switch {
	case o.Runtime == RuntimeMicroVM:
		needed["qemu-system-x86_64"] = "apt-get install qemu-system-x86"
	default:
		needed[o.Runtime] = "apt-get install " + o.Runtime
	}
	if o.Launcher == LauncherCRI {
		needed["containerd"] = "apt-get install containerd"
	}
	var errs []error
	for program, get := range needed {
		if _, err := exec.LookPath(program); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing: %s", program, get))
		}
	}
	for _, m := range o.Modes {
		errs = append(errs, m.missing())
	}
	return errors.Join(errs...)
}
