// Package startbench measures the concurrent start of containers with different
// networks, as "Understanding Network Startup for Secure Containers in Multi-Tenant
// Clouds" does (Fig. 6 to 8, 15, 18 and 20, Table 3).
//
// Steps of a sample:
//
//  1. Ready prepares a mode in the bench's network namespace: the CNI list, SCON's
//     agent with a full pool, and the launcher, a process in a cgroup with a high
//     CPU share (package launch).
//  2. Take makes the launcher start N containers at once. The sample ends when the
//     last of them is up and has answered the peer's ping. Lock contention and the
//     processor time of the cgroup are counted meanwhile.
//  3. The bench removes the containers and waits until the kernel has removed their
//     namespaces, so that this work does not count in the next sample.
package startbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/needs"
)

// Names of launchers and runtimes.
const (
	LauncherDirect = "direct"
	LauncherCRI    = "cri"
	RuntimeRunc    = "runc"
	RuntimeRunsc   = "runsc"
	RuntimeMicroVM = "microvm"
)

// Launchers and Runtimes list them in the order of help and documents.
var (
	Launchers = []string{LauncherDirect, LauncherCRI}
	Runtimes  = []string{RuntimeRunc, RuntimeRunsc, RuntimeMicroVM}
)

// Options are the options of a run.
type Options struct {
	Launcher, Runtime string
	Modes             []Mode
	// Count is the number of containers that start at once.
	Count int
	// Steps are the names of the steps to measure; none means Start and Add.
	Steps []string
	// Limits are the limits of the stages in modes with Admission.
	Limits Limits
	// Rounds is the number of rounds, Progress the progress display.
	Rounds   int
	Progress bench.Progress
}

// Check returns an error for invalid options or programs that this machine lacks.
func (o Options) Check() error {
	if o.Launcher == LauncherCRI && o.Runtime == RuntimeMicroVM {
		return errors.New("containerd has no shim for a QEMU microVM: use the direct launcher")
	}
	if o.Launcher == LauncherCRI && o.Runtime == RuntimeRunsc {
		return errors.New("containerd's shim for gVisor (containerd-shim-runsc-v1) is not packaged: use the direct launcher")
	}
	for _, m := range o.Modes {
		if m.OCI && (o.Launcher == LauncherCRI || o.Runtime == RuntimeMicroVM) {
			return fmt.Errorf("network %q: scon-oci is for the direct launcher with runc or runsc", m.Name)
		}
	}
	return o.missing()
}

// Run runs the measurement. It returns a result whenever there are samples, see
// bench.Run.
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

// missing returns an error that names the missing programs and how to install them.
func (o Options) missing() error {
	needed := []needs.Program{busybox}
	if o.Runtime == RuntimeMicroVM {
		needed = append(needed, needs.Program{Name: "qemu-system-x86_64", Package: "qemu-system-x86"})
	} else {
		needed = append(needed, needs.Program{Name: o.Runtime, Package: o.Runtime})
	}
	if o.Launcher == LauncherCRI {
		needed = append(needed, needs.Program{Name: "containerd", Package: "containerd"})
	}
	var errs []error
	for _, m := range o.Modes {
		if m.scon() {
			_, err := programs.Find("scon-cni")
			errs = append(errs, err)
			continue
		}
		for _, plugin := range m.plugins() {
			needed = append(needed, needs.Program{Name: filepath.Join(stockPlugins, plugin), Package: "containernetworking-plugins"})
		}
	}
	return errors.Join(append(errs, needs.Check(needed...))...)
}
