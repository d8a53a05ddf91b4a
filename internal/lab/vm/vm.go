// Package vm boots Debian kernels under QEMU, in software: no KVM is needed,
// and every kernel of Debian's archive is at hand, for any architecture.
//
// A guest has no disk and no network. All that it needs is in its initrd:
//
//	base     Debian packages: a shell, iproute2, iptables, nftables ...
//	modules  the kernel's modules of networking
//	job      the caller's files, a command, and the init that runs it
//
// What the command prints comes back over the serial console.
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

// Options say what to boot and what to run.
type Options struct {
	// Kernel is one of Kernels.
	Kernel string
	// Arch is Go's name of the architecture, amd64 or arm64. Default: this
	// machine's.
	Arch string
	// Files are copied into the guest with their modes: path in the guest ->
	// path here.
	Files map[string]string
	// Command is run by a shell as root, once the kernel is up.
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
	// Icount makes the guest's clock count instructions, 1 ns each, those of all
	// its CPUs together: they take turns.
	Icount bool
	// Hardware is the guest's, as options of QEMU: a machine, memory on NUMA nodes,
	// network cards. It takes a newer QEMU than Debian 12's, which is fetched, and
	// a kernel with drivers of real hardware.
	Hardware []string
	// Console gets what the guest prints as it does so. Default: nobody.
	Console io.Writer
}

// Result is what became of a command.
type Result struct {
	// Output is what the command printed, both streams.
	Output string
	// ExitCode is the command's.
	ExitCode int
	// Complaints are warnings and faults of the guest's kernel, empty if it had
	// none.
	Complaints string
}

// ErrTimeout: the guest was ended because its time was over.
var ErrTimeout = errors.New("the guest's time was over")

// Run boots a kernel, runs the command and switches the guest off. A command
// that fails is no error: see Result. What is needed from Debian is fetched
// once and kept: see Cache.
func Run(ctx context.Context, o Options) (Result, error) {
	o.setDefaults()
	m, err := machineOf(o.Arch)
	if err != nil {
		return Result{}, err
	}
	emulator, err := m.emulator(ctx, o)
	if err != nil {
		return Result{}, err
	}
	k, err := fetchKernel(ctx, o.Kernel, o.Arch, len(o.Hardware) > 0)
	if err != nil {
		return Result{}, fmt.Errorf("fetching Linux %s for %s: %w", o.Kernel, o.Arch, err)
	}
	base, err := fetchBase(ctx, o.Arch, o.Systemd)
	if err != nil {
		return Result{}, fmt.Errorf("fetching the guest's programs: %w", err)
	}
	initrd, err := makeInitrd(o, base, k.modules)
	if err != nil {
		return Result{}, fmt.Errorf("making the initrd: %w", err)
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

// boot runs QEMU until the guest switches itself off, and returns what came
// over its console.
func boot(ctx context.Context, qemu, args []string, also io.Writer) ([]byte, error) {
	// QEMU ends with the thread that started it, should this process be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var console bytes.Buffer
	cmd := exec.CommandContext(ctx, qemu[0], append(slices.Clone(qemu[1:]), args...)...)
	both := io.MultiWriter(&console, also)
	cmd.Stdout, cmd.Stderr = both, both
	// Ctrl-C is for the caller, who ends ctx.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return console.Bytes(), err
}

// machine is how an architecture is emulated.
type machine struct {
	qemu    string
	pkg     string // Debian's, which has it
	model   []string
	older   string // what the model lacks with other kernels than the newest
	console string // device of the serial console
}

var machines = map[string]machine{
	"amd64": {
		qemu: "qemu-system-x86_64", pkg: "qemu-system-x86", console: "ttyS0",
		// The emulator counts a whole "rep movs", which kernels prefer with erms
		// and fsrm, as many instructions.
		model: []string{"-M", "pc", "-cpu", "max,-erms,-fsrm"},
		// It is slow at cmpxchg16b.
		older: ",-cx16",
	},
	"arm64": {
		qemu: "qemu-system-aarch64", pkg: "qemu-system-arm", console: "ttyAMA0",
		model: []string{"-M", "virt", "-cpu", "max,pauth-impdef=on"},
	},
}

// Architectures are those that a guest can have, by Go's names.
func Architectures() []string { return slices.Sorted(maps.Keys(machines)) }

func machineOf(arch string) (machine, error) {
	m, ok := machines[arch]
	if !ok {
		return machine{}, fmt.Errorf("no guests of architecture %q", arch)
	}
	return m, nil
}

func (m machine) args(o Options) []string {
	// norandmaps: the emulator keeps its translation of a program by address.
	cmdline := "console=" + m.console + " quiet loglevel=1 panic=-1 nokaslr norandmaps"
	if o.Systemd {
		cmdline += " rdinit=/usr/lib/systemd/systemd systemd.unit=job.service systemd.show_status=no"
	}
	args := slices.Clone(m.model)
	if o.Kernel != "newest" { // which gives sockets no BPF storage without
		args[len(args)-1] += m.older
	}
	args = append(args,
		// One thread: with more, a CPU may run what another has just patched, and
		// kernels that switch tracepoints die of it.
		"-accel", "tcg,thread=single", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-m", strconv.Itoa(o.Memory), "-smp", strconv.Itoa(o.CPUs),
		"-append", cmdline)
	if o.Icount {
		args = append(args, "-icount", "shift=0,sleep=off")
	}
	return append(args, o.Hardware...)
}

// tail is the end of a long text.
func tail(text []byte) []byte { return text[max(0, len(text)-4<<10):] }
