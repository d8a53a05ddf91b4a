package startbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/contention"
)

// bed is the environment in which containers start, with the processes of the mode.
type bed struct {
	options Options
	prefix  string // of all names
	dir     string
	host    *host
	group   *group
	locks   *contention.Meter // nil without the tracepoints

	warm map[string]bool // modes that have started a container

	image, initrd string // of microVMs

	// Of the mode:
	mode     Mode
	launcher *launcher
	agent    *agent
	kernel   int // KiB of kernel memory before the mode
}

// openBed makes the bed of this process.
func openBed(ctx context.Context, o Options) (b *bed, err error) {
	b = &bed{options: o, prefix: fmt.Sprintf("scon-s%d", os.Getpid()), warm: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.dir, err = makeDir(b.prefix); err != nil {
		return b, err
	}
	if b.host, err = openHost(b.prefix + "-host"); err != nil {
		return b, err
	}
	if b.group, err = openGroup(b.prefix); err != nil {
		return b, err
	}
	if err := writeRoot(b.root()); err != nil {
		return b, err
	}
	if err := b.writeNoop(); err != nil {
		return b, err
	}
	if o.Runtime == RuntimeMicroVM {
		if err := b.prepareGuest(ctx); err != nil {
			return b, err
		}
	}
	b.locks, err = contention.Open(b.group.unified())
	if errors.Is(err, contention.ErrNotSupported) {
		err = nil
	}
	return b, err
}

func (b *bed) root() string { return filepath.Join(b.dir, "root") }

// Close implements bench.Bed.
func (b *bed) Close() error {
	errs := []error{b.Clear()}
	if b.locks != nil {
		errs = append(errs, b.locks.Close())
	}
	if b.group != nil {
		errs = append(errs, b.group.close())
	}
	if b.host != nil {
		errs = append(errs, b.host.close())
	}
	return errors.Join(append(errs, removeDir(b.dir))...)
}

// makeDir makes a directory on a tmpfs, since runtimes, plugins and the agent
// normally write to /run.
func makeDir(prefix string) (dir string, err error) {
	if os.Geteuid() != 0 {
		return "", errors.New("prepare the bench: mounts and network namespaces need root; try sudo")
	}
	if dir, err = os.MkdirTemp("", prefix+"-"); err != nil {
		return "", err
	}
	if err := unix.Mount("scon-lab", dir, "tmpfs", 0, "mode=700"); err != nil {
		return "", errors.Join(fmt.Errorf("mount memory at %s: %w", dir, err), os.Remove(dir))
	}
	return dir, nil
}

func removeDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return os.Remove(dir)
}

// Ready implements bench.Bed.
func (b *bed) Ready(ctx context.Context, mode bench.Mode) (err error) {
	m, err := ParseMode(mode.Name)
	if err != nil {
		return err
	}
	b.mode = m
	if err := b.host.settle(); err != nil {
		return err
	}
	if b.kernel, err = kernelMemory(); err != nil {
		return err
	}
	order, err := b.order(m)
	if err != nil {
		return err
	}
	if m.scon() {
		if b.agent, err = b.startAgent(ctx, m, order.Networks); err != nil {
			return err
		}
	}
	if b.launcher, err = b.startLauncher(ctx, order); err != nil {
		return err
	}
	return b.warmUp(ctx, mode.Name)
}

// warmUp starts one container on the first visit of a mode, so that programs are in
// the page cache.
func (b *bed) warmUp(ctx context.Context, mode string) error {
	if b.warm[mode] {
		return nil
	}
	b.warm[mode] = true
	for _, what := range []string{DoPrepare, DoStart, DoClear} {
		if _, err := b.launcher.do(ctx, Command{Do: what, Count: 1}); err != nil {
			return err
		}
	}
	return nil
}

// order returns the launcher's order for a mode.
func (b *bed) order(m Mode) (o Order, err error) {
	o = Order{
		Prefix:   b.prefix,
		Dir:      b.dir,
		Launcher: b.options.Launcher,
		Runtime:  b.options.Runtime,
		Ping:     m.networked(),
		Cgroup:   b.group.pods(),
		Root:     b.root(),
		Kernel:   b.image,
		Initrd:   b.initrd,
	}
	for _, c := range b.group.controllers() {
		o.CgroupRoots = append(o.CgroupRoots, b.group.roots[c])
	}
	if o.Networks, err = b.writeNetworks(m); err != nil {
		return o, err
	}
	if o.Plugins, err = b.pluginDirs(m); err != nil {
		return o, err
	}
	if m.scon() {
		err = b.sconOrder(m, &o)
	}
	return o, err
}

// Clear implements bench.Bed.
func (b *bed) Clear() error {
	var errs []error
	if b.launcher != nil {
		errs = append(errs, b.launcher.close())
	}
	if b.agent != nil {
		errs = append(errs, b.agent.stop())
	}
	b.launcher, b.agent = nil, nil
	if b.host == nil {
		return errors.Join(errs...)
	}
	for _, left := range []string{"addresses", "net.d", "cni", "agent"} {
		errs = append(errs, os.RemoveAll(filepath.Join(b.dir, left)))
	}
	return errors.Join(append(errs, b.host.empty(), b.host.settle())...)
}

// Take implements bench.Bed.
func (b *bed) Take(ctx context.Context, mode bench.Mode, step bench.Step) (bench.Sample, error) {
	m, err := ParseMode(mode.Name)
	if err != nil {
		return bench.Sample{}, err
	}
	for _, s := range steps {
		if s.name == step.Name {
			return s.take(ctx, b, m)
		}
	}
	return bench.Sample{}, fmt.Errorf("no step %q", step.Name)
}

// empty removes what a measurement left, before the mode's next one.
func (b *bed) empty(ctx context.Context) error {
	if _, err := b.launcher.do(ctx, Command{Do: DoClear}); err != nil {
		return err
	}
	return b.host.settle()
}

// reading holds the values of the meters.
type reading struct {
	at    time.Time
	cpu   time.Duration // of all processes of the bench
	agent time.Duration // of the agent

	taken, came uint64 // containers from the pool, and all
}

func (b *bed) read() (r reading, err error) {
	r.at = time.Now()
	if r.cpu, err = b.group.used(); err != nil {
		return r, err
	}
	if b.agent != nil {
		if r.agent, err = b.agent.used(); err != nil {
			return r, err
		}
		r.taken, r.came, err = b.agent.pooled()
	}
	return r, err
}
