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
	"github.com/scon-project/scon/internal/express/liberal"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newDownCommand() *cobra.Command {
	var o downOptions
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop all services and remove everything they own, also after a crash",
		Long: `Stop all services and remove everything they own, also after a crash.

TCP connections that went express stay in conntrack, which accepts every sequence
number of them until they end ("liberal"). down lists them. --conntrack decides what
becomes of them:

  keep     they stay liberal
  restore  conntrack judges sequence numbers again, by windows that it takes from the
           next packets; this takes up to 10 seconds. A connection without packets, or
           whose entry cannot be created again, stays liberal: the reason is listed
  delete   conntrack forgets them: a connection whose addresses are translated may
           break, others are picked up with their next packet if the rules allow it,
           and are then liberal because the kernel has not seen them begin`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			// Another socket belongs to another daemon, whose state directory is the
			// socket's.
			if t.socket != "" && !cmd.Flags().Changed("state-dir") {
				o.dir = filepath.Dir(t.socket)
			}
			if o.dir, err = filepath.Abs(o.dir); err != nil {
				return fmt.Errorf("find %s: %w", o.dir, err)
			}
			if !slices.Contains(liberalModes, o.mode) {
				return cli.Usagef(cmd, "--conntrack is %q: want keep, restore or delete", o.mode)
			}
			if o.onTerm {
				return t.downOnTerm(o)
			}
			return t.down(o)
		},
	}
	cmd.Flags().BoolVar(&o.onTerm, "on-term", false, "wait for SIGTERM, and then until no daemon runs; remove what the last one left. Stops nothing")
	cmd.Flags().StringVar(&o.mode, "conntrack", liberal.Keep, "what becomes of connections that are liberal in conntrack: `keep, restore or delete`")
	cli.CompleteWords(cmd, "conntrack", liberal.Keep, liberal.Restore, liberal.Delete)
	addStateDirFlag(cmd, &o.dir)
	cli.AddNetnsFlag(cmd, &o.netns, "clean up in that network namespace, a `name` of ip-netns or a path (default: the service's)")
	cli.AddJSONFlag(cmd, &o.json)
	return cmd
}

// liberalModes are the values of --conntrack.
var liberalModes = []string{liberal.Keep, liberal.Restore, liberal.Delete}

// downOptions are what down's flags say.
type downOptions struct {
	dir, netns string
	mode       string // liberal.Keep, ...
	json       bool
	onTerm     bool
}

func (t *tool) down(o downOptions) error {
	if err := doctor.RequireRoot("stop services and remove what they have attached"); err != nil {
		return err
	}
	defer turn(o.dir, func(dir string) error { _, err := os.Stat(dir); return err })()
	done := api.Down{Conntrack: o.mode, Stopped: []api.Stopped{}, Connections: []api.Ended{}}
	var names []string
	var errs []error
	for _, u := range slices.Backward(t.units) { // express last: it owns the state directory
		pid, conns, err := t.downOne(u, o)
		errs = append(errs, err) // the other services are stopped all the same
		for _, c := range conns {
			done.Connections = append(done.Connections, api.Ended{
				Proto: "tcp", Outcome: c.Outcome, Reason: c.Reason,
				Orig: api.Tuple{Src: c.Src.Addr().String(), Sport: c.Src.Port(), Dst: c.Dst.Addr().String(), Dport: c.Dst.Port()},
			})
		}
		if pid != 0 {
			done.Stopped = append(done.Stopped, api.Stopped{Name: u.id(), PID: pid})
			names = append(names, fmt.Sprintf("the %s (pid %d)", u.name, pid))
		}
	}
	slices.Reverse(names)
	slices.Reverse(done.Stopped)
	err := errors.Join(errs...)
	if err != nil && len(names) > 0 {
		fmt.Fprintf(t.stderr, "scon: stopped %s\n", strings.Join(names, ", "))
	}
	if mounted := filepath.Dir(pipe.Socket(o.dir)); exists(mounted) {
		done.Left = mounted
	}
	switch {
	case o.json:
		err = errors.Join(err, t.printJSON(done))
	case err == nil:
		_, err = fmt.Fprint(t.stdout, describeStopped(names, done.Left), describeEnded(done.Connections))
	}
	if err != nil {
		return err
	}
	if n := count(done.Connections, liberal.Lost); n > 0 {
		return fmt.Errorf("conntrack has lost %d connections that were to be restored", n)
	}
	return nil
}

// describeStopped says which services have been stopped and what is left of them.
func describeStopped(names []string, left string) string {
	word := "No daemon was running"
	if last := len(names) - 1; last == 0 {
		word = "Stopped " + names[0]
	} else if last > 0 {
		word = "Stopped " + strings.Join(names[:last], ", ") + " and " + names[last]
	}
	if left != "" {
		left = fmt.Sprintf(" but %s, which containers may have mounted; delete it when none has", left)
	}
	return fmt.Sprintf("%s; nothing of SCON is left%s.\n", word, left)
}

// listedEnded is how many connections of each outcome down names.
const listedEnded = 5

// describeEnded says what became of connections that were liberal in conntrack.
func describeEnded(conns []api.Ended) (text string) {
	for _, group := range []struct{ outcome, head string }{
		{liberal.Restored, "Connections that conntrack judges again"},
		{liberal.Deleted, "Liberal connections deleted from conntrack"},
		{liberal.Kept, "Connections that stay liberal in conntrack until they end"},
		{liberal.Lost, "Connections that conntrack has lost"},
	} {
		n := count(conns, group.outcome)
		if n == 0 {
			continue
		}
		text += fmt.Sprintf("%s: %d\n", group.head, n)
		left := n
		for _, c := range conns {
			if c.Outcome != group.outcome || n-left == listedEnded {
				continue
			}
			left--
			text += fmt.Sprintf("  %s %v", c.Proto, c.Orig)
			if c.Reason != "" {
				text += ": " + c.Reason
			}
			text += "\n"
		}
		if left > 0 {
			text += fmt.Sprintf("  and %d more\n", left)
		}
	}
	return text
}

// count returns how many connections have an outcome.
func count(conns []api.Ended, outcome string) (n int) {
	for _, c := range conns {
		if c.Outcome == outcome {
			n++
		}
	}
	return n
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// downOne stops a service and removes everything that it owns. It returns the
// service's process ID, 0 if the service did not run, and what became of the connections
// that it left liberal in conntrack.
func (t *tool) downOne(u unit, down downOptions) (pid int, conns []liberal.Conn, err error) {
	s, err := t.readState(u.Dir(down.dir))
	if err != nil {
		return 0, nil, err
	}
	o := service.Options{
		StateDir: down.dir,
		Socket:   cmp.Or(s.Socket, u.Socket(down.dir)),
		Netns:    cmp.Or(down.netns, s.Netns),
		Version:  version(),
	}
	if u.Service == state.Express {
		o.Socket = cmp.Or(t.socket, o.Socket)
		o.Config.Web = s.Config.Web
	}
	if pid, err = t.stop(u, o.Socket); err != nil {
		if s.PID != 0 && !errors.Is(err, api.ErrHangs) {
			err = fmt.Errorf("%w; end the %s with 'kill -9 %d', then run 'scon down' again", err, u.name, s.PID)
		}
		return 0, nil, err
	}
	if err := t.removeAll(u, o, s.PID); err != nil || u.liberal == nil {
		return pid, nil, err
	}
	var done, total int
	pace := cli.NewPace(t.stderr, "connections in conntrack", func() (int, int) { return done, total })
	defer pace.End()
	err = within(o.Netns, func() (err error) {
		conns, err = u.liberal(down.mode, func(d, n int) {
			done, total = d, n
			pace.Stuck(time.Now())
		})
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
		if pid == 0 {
			return fmt.Errorf("a %s holds %s and does not answer at %s: it starts or ends; run 'scon down' again", u.name, u.Dir(o.StateDir), o.Socket)
		}
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
	for _, socket := range []string{o.Socket, o.Config.Web} { // elsewhere than in the state directory
		if filepath.IsAbs(socket) {
			if err := api.RemoveStale(socket); err != nil {
				return err
			}
		}
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
