package doctor

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Require refuses a machine on which no daemon can start: no root, a kernel
// older than 5.15, no BPF. The error says what to do.
func Require() error {
	return require(thisHost(), func() error { return features.HaveProgramType(ebpf.SchedCLS) })
}

// RequireRoot refuses everybody but root, and says what root is needed for.
func RequireRoot(what string) error { return requireRoot(thisHost(), what) }

func requireRoot(h host, what string) error {
	if !h.isRoot() {
		return fmt.Errorf("need root to %s: run it with sudo", what)
	}
	return nil
}

func require(h host, tryBPF func() error) error {
	if err := requireRoot(h, "load BPF programs"); err != nil {
		return err
	}
	v, err := parseVersion(h.release)
	if err != nil {
		return err
	}
	if v.before(floor) {
		return fmt.Errorf("kernel %s is too old: need %v or newer", h.release, floor)
	}
	if err := tryBPF(); err != nil {
		return fmt.Errorf("load a BPF program: %w: %s", err, bpfRemedy(err))
	}
	return nil
}

// bpfRemedy is what to do about a kernel that takes no program.
func bpfRemedy(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "give the container or service CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and check lockdown and seccomp"
	}
	return "need a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT"
}
