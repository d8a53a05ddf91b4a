package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/programs"
)

// Time limits for the daemon to become active and to exit.
const (
	daemonStart = 30 * time.Second // several daemons may start at the same time
	daemonStop  = time.Minute      // it waits for the kernel's lock of devices for each program
)

// errEnded means that the daemon exited without being stopped.
var errEnded = errors.New("it exited unexpectedly")

// daemon is SCON's daemon as a child process.
type daemon struct {
	command *exec.Cmd
	output  bytes.Buffer // owned by the process until ended is closed
	ended   chan struct{}
	client  *api.Client
	dir     string   // holds its state and socket
	ports   []string // ports of the containers whose packets are counted
	uplink  string
}

// startDaemonAt starts the daemon in a namespace with the given settings and waits
// until it is active at a container's port and an uplink.
func startDaemonAt(ctx context.Context, netns, port, uplink, settings string) (d *daemon, err error) {
	scon, err := programs.Find("scon")
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	dir, err := os.MkdirTemp("", "sconbench")
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	socket, config := filepath.Join(dir, "sock"), filepath.Join(dir, "scon.yaml")
	d = &daemon{
		dir:    dir,
		ended:  make(chan struct{}),
		client: api.Dial(socket),
		ports:  []string{port},
		uplink: uplink,
		command: exec.Command(scon, "daemon", "--netns", netns,
			"--config", config, "--state-dir", filepath.Join(dir, "state"), "--socket", socket),
	}
	d.command.Stdout, d.command.Stderr = &d.output, &d.output
	// Ctrl-C must only reach the bench, which then stops the daemon. If the bench
	// is killed, the kernel ends the daemon.
	d.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	// The machine's own settings do not apply in the lab.
	err = os.WriteFile(config, []byte("# written by scon bench\n"+settings), 0o644)
	if err == nil {
		err = d.command.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the daemon: %w", err), os.RemoveAll(dir))
	}
	go func() {
		d.command.Wait()
		close(d.ended)
	}()
	if err := d.waitActive(ctx); err != nil {
		err = fmt.Errorf("start the daemon: %w", err)
		if errors.Is(err, errEnded) {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

// waitActive waits until the lab's containers can use the express path.
func (d *daemon) waitActive(ctx context.Context) error {
	deadline := time.After(daemonStart)
	for {
		status, err := d.client.Status()
		if err == nil && activeAt(status, append(slices.Clone(d.ports), d.uplink)...) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.ended:
			return fmt.Errorf("%w: %s", errEnded, bytes.TrimSpace(d.output.Bytes()))
		case <-deadline:
			return fmt.Errorf("not active after %v: state %q, hooks %v: %w", daemonStart, status.State, status.Hooks, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// activeAt reports whether the express path is active at all of the devices.
func activeAt(status api.Status, devs ...string) bool {
	hooked := map[string]bool{}
	for _, hook := range status.Hooks {
		hooked[hook.Dev] = true
	}
	for _, dev := range devs {
		if !hooked[dev] {
			return false
		}
	}
	return status.State == api.StateActive
}

// read adds the daemon's counters to a reading.
func (d *daemon) read(r *reading) error {
	status, err := d.client.Status()
	if err != nil {
		return err
	}
	r.reasons = map[string]uint64{}
	for _, c := range status.Containers {
		if !slices.Contains(d.ports, c.Dev) {
			continue
		}
		r.express += c.ExpressPackets
		r.regular += c.RegularPackets
		for reason, n := range c.Reasons {
			r.reasons[reason] += n
		}
	}
	for reason, n := range status.Reasons {
		r.reasons[reason] += n
	}
	r.inert = time.Duration(status.Rules.Unknown * float64(time.Second))
	r.daemonTime, err = processTime(d.command.Process.Pid)
	return err
}

// processTime returns the processor time that all threads of a process have used,
// including threads that have exited.
func processTime(pid int) (time.Duration, error) {
	// The clock id of another process: its inverted pid, shifted, and 2 for the
	// scheduler's clock.
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// resident returns the daemon's resident memory in megabytes.
func (d *daemon) resident() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.command.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the daemon's memory: %w", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kB float64
	if _, err := fmt.Sscan(rest, &kB); err != nil {
		return 0, fmt.Errorf("read the daemon's memory: %w", err)
	}
	return kB * 1024 / 1e6, nil
}

// stop ends the daemon with SIGTERM, as a service manager does, and removes its
// files.
func (d *daemon) stop() error {
	var err error
	d.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(daemonStop):
		d.command.Process.Kill()
		<-d.ended
		err = fmt.Errorf("stop the daemon: it did not exit within %v and was killed", daemonStop)
	}
	if err == nil && !d.command.ProcessState.Success() {
		err = fmt.Errorf("stop the daemon: %v: %s", d.command.ProcessState, bytes.TrimSpace(d.output.Bytes()))
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}
