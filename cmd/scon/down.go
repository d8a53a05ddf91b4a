package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newDownCommand() *cobra.Command {
	var stateDir, namespace, mode string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop all services and remove everything they own, also after a crash",
		Long: `Stop all services and remove everything they own, also after a crash.

TCP connections that went express stay in conntrack, which accepts every sequence
number of them until they end ("liberal"). down lists them. --conntrack delete
removes them from conntrack: a connection whose addresses are translated may break,
others are picked up with their next packet if the rules allow it, and are then
liberal because the kernel has not seen them begin.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Another socket belongs to another daemon, whose state directory is the
			// socket's.
			if t.socket != "" && !cmd.Flags().Changed("state-dir") {
				stateDir = filepath.Dir(t.socket)
			}
			dir, err := filepath.Abs(stateDir)
			if err != nil {
				return fmt.Errorf("find %s: %w", stateDir, err)
			}
			if mode != conntrackKeep && mode != conntrackDelete {
				return cli.Usagef(cmd, "--conntrack is %q: want %s or %s", mode, conntrackKeep, conntrackDelete)
			}
			return t.down(dir, namespace, mode)
		},
	}
	cmd.Flags().StringVar(&mode, "conntrack", conntrackKeep, "what becomes of connections that are liberal in conntrack: `keep or delete`")
	addStateDirFlag(cmd, &stateDir)
	cli.AddNetnsFlag(cmd, &namespace, "clean up in that network namespace, a `name` of ip-netns or a path (default: the service's)")
	return cmd
}

// What --conntrack takes.
const (
	conntrackKeep   = "keep"
	conntrackDelete = "delete"
)

func (t *tool) down(dir, namespace, mode string) error {
	if err := doctor.Require(); err != nil {
		return err
	}
	var stopped []string
	var errs []error
	var conns []conntrack.Tuple
	for _, u := range slices.Backward(t.units) { // express last: it owns the state directory
		pid, liberal, err := t.downOne(u, dir, namespace, mode == conntrackDelete)
		errs = append(errs, err) // the other services are stopped all the same
		conns = append(conns, liberal...)
		if pid != 0 {
			stopped = append(stopped, fmt.Sprintf("the %s (pid %d)", u.name, pid))
		}
	}
	slices.Reverse(stopped)
	if err := errors.Join(errs...); err != nil {
		if len(stopped) > 0 {
			fmt.Fprintf(t.stderr, "scon: stopped %s\n", strings.Join(stopped, ", "))
		}
		return err
	}
	word := "No daemon was running"
	if last := len(stopped) - 1; last == 0 {
		word = "Stopped " + stopped[0]
	} else if last > 0 {
		word = "Stopped " + strings.Join(stopped[:last], ", ") + " and " + stopped[last]
	}
	left := ""
	if mounted := filepath.Dir(pipe.Socket(dir)); exists(mounted) {
		left = fmt.Sprintf(" but %s, which containers may have mounted; delete it when none has", mounted)
	}
	_, err := fmt.Fprintf(t.stdout, "%s; nothing of SCON is left%s.\n%s", word, left, describeLiberal(conns, mode))
	return err
}

// listedLiberal is how many connections down names.
const listedLiberal = 5

// describeLiberal says what became of connections that were liberal in conntrack.
func describeLiberal(conns []conntrack.Tuple, mode string) string {
	if len(conns) == 0 {
		return ""
	}
	text := fmt.Sprintf("Connections that stay liberal in conntrack until they end: %d\n", len(conns))
	if mode == conntrackDelete {
		text = fmt.Sprintf("Liberal connections deleted from conntrack: %d\n", len(conns))
	}
	for _, c := range conns[:min(len(conns), listedLiberal)] {
		text += fmt.Sprintf("  %v\n", c)
	}
	if more := len(conns) - listedLiberal; more > 0 {
		text += fmt.Sprintf("  and %d more\n", more)
	}
	return text
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// downOne stops a service and removes everything that it owns. It returns the
// service's process ID, 0 if the service did not run, and the connections that were
// left liberal in conntrack, or were removed from it.
func (t *tool) downOne(u unit, dir, namespace string, remove bool) (pid int, conns []conntrack.Tuple, err error) {
	s, err := t.readState(u.Dir(dir))
	if err != nil {
		return 0, nil, err
	}
	o := service.Options{
		StateDir: dir,
		Socket:   cmp.Or(s.Socket, u.Socket(dir)),
		Netns:    cmp.Or(namespace, s.Netns),
		Version:  version(),
	}
	if u.Service == state.Express {
		o.Socket = cmp.Or(t.socket, o.Socket)
	}
	if pid, err = t.stop(u, o.Socket); err != nil {
		if s.PID != 0 {
			err = fmt.Errorf("%w; end the %s with 'kill -9 %d', then run 'scon down' again", err, u.name, s.PID)
		}
		return 0, nil, err
	}
	if err := t.removeAll(u, o, s.PID); err != nil || u.liberal == nil {
		return pid, nil, err
	}
	err = within(o.Netns, func() (err error) {
		conns, err = u.liberal(remove)
		return err
	})
	if errors.Is(err, netns.ErrNotExist) {
		err = nil // its connections ended with it
	}
	return pid, conns, err
}

// removeAll removes what a service left in the kernel and in the state directory,
// unless the service still runs there.
func (t *tool) removeAll(u unit, o service.Options, pid int) error {
	unlock, err := state.Lock(u.Dir(o.StateDir))
	if errors.Is(err, state.ErrLocked) {
		return fmt.Errorf("a %s (pid %d) holds %s and does not answer at %s; end it with 'kill %d', then run 'scon down' again", u.name, pid, u.Dir(o.StateDir), o.Socket, pid)
	}
	if err != nil {
		return err
	}
	defer unlock()
	o.Logger = slog.New(slog.DiscardHandler)
	err = within(o.Netns, func() error { return u.clean(o) })
	if errors.Is(err, netns.ErrNotExist) && u.Service != state.Express {
		err = nil // its devices ended with it
	} else if errors.Is(err, netns.ErrNotExist) {
		// The programs ended with the devices.
		fmt.Fprintf(t.stderr, "scon: warning: %v; nothing to detach there\n", err)
		err = express.CleanAbandoned()
	}
	if err != nil {
		return err
	}
	return u.Remove(o.StateDir)
}

// within calls fn in a network namespace, "" for this one.
func within(namespace string, fn func() error) error {
	if namespace == "" {
		return fn()
	}
	return netns.Do(namespace, fn)
}

// stop asks a service to end, waits until it has, and returns its process ID, 0 if
// none answers.
func (t *tool) stop(u unit, socket string) (pid int, err error) {
	p, err := u.process(socket)
	if p.PID == 0 || err != nil {
		return 0, err
	}
	// The handle stays the service's, even if its process ID is reused.
	handle, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return 0, fmt.Errorf("watch the %s (pid %d): %w", u.name, p.PID, err)
	}
	defer unix.Close(handle)
	progress := func() (int, int) { return 0, 0 }
	if u.Service == state.Express {
		status, err := api.Dial(socket).Status()
		if err != nil {
			return 0, err
		}
		progress = unhooking(status)
	}
	if err := u.dial(socket).Stop(); err != nil {
		return 0, err
	}
	pace := cli.NewPace(t.stderr, "unhooking devices", progress)
	defer pace.End()
	for !ends(handle) {
		if pace.Stuck(time.Now()) {
			return 0, fmt.Errorf("the %s (pid %d) has not ended and made no progress for %v; see its log", u.name, p.PID, cli.Standstill)
		}
	}
	return p.PID, nil
}

// unhooking counts the hooks that a daemon has removed; the kernel takes about
// 20 ms for each device.
func unhooking(s api.Status) func() (done, total int) {
	return func() (int, int) {
		left, err := express.Hooked(fmt.Sprintf("/proc/%d/ns/net", s.PID))
		if err != nil {
			return 0, 0
		}
		return len(s.Hooks) - left, len(s.Hooks)
	}
}

// ends waits one poll interval for the end of a process.
func ends(handle int) bool {
	fds := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(cli.PollInterval.Milliseconds()))
	return err == nil && n == 1
}
