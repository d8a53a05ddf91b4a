// Package vm boots Debian kernels under QEMU by emulation, without KVM: any kernel of
// Debian's archive, of several architectures.
//
// A guest has no disk and no network. Its initrd has all files:
//
//	base     Debian packages: a shell, iproute2, iptables, nftables ...
//	modules  the kernel's modules of networking
//	job      the caller's files, a command, and the init that runs it
//
// The command's output is sent over the serial console.
package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Options are the guest and the command to run.
type Options struct {
	// Kernel is one of Kernels.
	Kernel string
	// Arch is Go's name of the architecture, amd64 or arm64. Default: this
	// machine's.
	Arch string
	// Files are copied into the guest with their modes: path in the guest -> path on
	// this machine.
	Files map[string]string
	// Command is run by a shell as root after the boot.
	Command string
	// Memory in MiB. Default: 1024.
	Memory int
	// CPUs. Default: 1.
	CPUs int
	// Timeout bounds boot and command. Default: 5 minutes. A boot takes about
	// 15 s on an idle machine.
	Timeout time.Duration
	// Systemd makes systemd the guest's first process and the command a
	// service of it.
	Systemd bool
	// System is a Debian release, "bookworm" or "trixie", whose minimal system with
	// dpkg, systemd and Docker the guest has, instead of the programs of the others.
	// It needs Systemd.
	System string
	// Icount makes the guest's clock count the instructions of all CPUs, 1 ns each.
	// The CPUs run alternately.
	Icount bool
	// Hardware are QEMU options for the guest's hardware: a machine, memory on NUMA
	// nodes, network cards. They need a newer QEMU than Debian 12's, which is
	// fetched, and a kernel with drivers of real hardware.
	Hardware []string
	// Console gets the guest's output as it is printed; may be nil.
	Console io.Writer
}

// Result is the result of a command.
type Result struct {
	// Output is the command's standard output and standard error.
	Output string
	// ExitCode is the command's exit status.
	ExitCode int
	// Complaints are warnings and faults of the guest's kernel, "" if there are none.
	Complaints string
}

// ErrTimeout means that the guest was killed at the timeout.
var ErrTimeout = errors.New("the guest's time was over")

// Run boots a kernel, runs the command and powers the guest off. A command that fails
// is no error: see Result. Packages are downloaded once and cached: see Cache.
func Run(ctx context.Context, o Options) (Result, error) {
	o.setDefaults()
	m, err := machineOf(o.Arch)
	if err != nil {
		return Result{}, err
	}
	if err := m.needs(o); err != nil {
		return Result{}, err
	}
	emulator, err := m.emulator(ctx, o)
	if err != nil {
		return Result{}, err
	}
	k, err := fetchKernel(ctx, o.Kernel, o.Arch, len(o.Hardware) > 0)
	if err != nil {
		return Result{}, fmt.Errorf("fetch Linux %s for %s: %w", o.Kernel, o.Arch, err)
	}
	base, err := o.base(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("fetch the guest's programs: %w", err)
	}
	initrd, err := makeInitrd(o, base, k.modules)
	if err != nil {
		return Result{}, fmt.Errorf("make the initrd: %w", err)
	}
	defer os.Remove(initrd)

	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, ErrTimeout)
	defer cancel()
	console, err := boot(ctx, emulator, append(m.args(o), "-kernel", k.image, "-initrd", initrd), o.Console)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w; the console's end:\n%s", m.qemu, err, tail(console))
	}
	r, err := parseConsole(console)
	if err != nil {
		return Result{}, fmt.Errorf("%w; the console's end:\n%s", err, tail(console))
	}
	return r, nil
}

func (o *Options) setDefaults() {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	if o.Memory == 0 {
		o.Memory = 1024
	}
	if o.CPUs == 0 {
		o.CPUs = 1
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Minute
	}
	if o.Console == nil {
		o.Console = io.Discard
	}
}

// base returns the archive of the guest's programs.
func (o *Options) base(ctx context.Context) (string, error) {
	if o.System != "" {
		return fetchSystem(ctx, o.Arch, o.System)
	}
	return fetchBase(ctx, o.Arch, o.Systemd)
}

// boot runs QEMU until the guest powers off, and returns the console's output.
func boot(ctx context.Context, qemu, args []string, also io.Writer) ([]byte, error) {
	// Pdeathsig ends QEMU with the thread that started it, also if this process is
	// killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var console bytes.Buffer
	cmd := exec.CommandContext(ctx, qemu[0], append(slices.Clone(qemu[1:]), args...)...)
	both := io.MultiWriter(&console, also)
	cmd.Stdout, cmd.Stderr = both, both
	// A process group of its own: the caller handles Ctrl-C and ends ctx.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return console.Bytes(), err
}

// machine describes the emulation of an architecture.
type machine struct {
	qemu    string
	pkg     string // Debian package of qemu
	model   []string
	older   string // added to the model for all kernels but the newest
	console string // device of the serial console
}

var machines = map[string]machine{
	"amd64": {
		qemu: "qemu-system-x86_64", pkg: "qemu-system-x86", console: "ttyS0",
		// The emulator counts a whole "rep movs", which kernels prefer with erms
		// and fsrm, as many instructions.
		model: []string{"-M", "pc", "-cpu", "max,-erms,-fsrm"},
		// The emulator is slow at cmpxchg16b.
		older: ",-cx16",
	},
	"arm64": {
		qemu: "qemu-system-aarch64", pkg: "qemu-system-arm", console: "ttyAMA0",
		model: []string{"-M", "virt", "-cpu", "max,pauth-impdef=on"},
	},
}

// Architectures returns the architectures of guests, by Go's names.
func Architectures() []string { return slices.Sorted(maps.Keys(machines)) }

func machineOf(arch string) (machine, error) {
	m, ok := machines[arch]
	if !ok {
		return machine{}, fmt.Errorf("unsupported architecture %q", arch)
	}
	return m, nil
}

func (m machine) args(o Options) []string {
	// norandmaps: the emulator caches the translation of a program by its address.
	cmdline := "console=" + m.console + " quiet loglevel=1 panic=-1 nokaslr norandmaps"
	if o.Systemd {
		cmdline += " rdinit=/usr/lib/systemd/systemd systemd.unit=job.service systemd.show_status=no"
	}
	args := slices.Clone(m.model)
	if o.Kernel != "newest" { // the newest needs it for BPF socket storage
		args[len(args)-1] += m.older
	}
	args = append(args,
		// One thread: with more, a CPU may execute code that another CPU is patching,
		// which crashes kernels that switch tracepoints.
		"-accel", "tcg,thread=single", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-m", strconv.Itoa(o.Memory), "-smp", strconv.Itoa(o.CPUs),
		"-append", cmdline)
	if o.Icount {
		args = append(args, "-icount", "shift=0,sleep=off")
	}
	return append(args, o.Hardware...)
}

// tail returns the end of a long text.
func tail(text []byte) []byte { return text[max(0, len(text)-4<<10):] }
