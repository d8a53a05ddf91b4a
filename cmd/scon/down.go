package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newDownCommand() *cobra.Command {
	var stateDir, namespace string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the daemon and remove everything it owns, also after a crash",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A socket elsewhere is that of another daemon, with its
			// own directory.
			if t.socket != "" && !cmd.Flags().Changed("state-dir") {
				stateDir = filepath.Dir(t.socket)
			}
			dir, err := filepath.Abs(stateDir)
			if err != nil {
				return fmt.Errorf("find %s: %w", stateDir, err)
			}
			return t.down(dir, namespace)
		},
	}
	addStateDirFlag(cmd, &stateDir)
	cli.AddNetnsFlag(cmd, &namespace, "clean up in that network namespace, a `name` of ip-netns or a path (default: where the daemon was)")
	return cmd
}

func (t *tool) down(dir, namespace string) error {
	if err := doctor.Require(); err != nil {
		return err
	}
	s, err := t.readState(dir)
	if err != nil {
		return err
	}
	o := express.Options{
		StateDir: dir,
		Socket:   cmp.Or(t.socket, s.Socket, state.Socket(dir)),
		Netns:    cmp.Or(namespace, s.Netns),
		Version:  version(),
	}
	pid, err := t.stop(api.Dial(o.Socket))
	if err != nil {
		return err
	}
	if err := t.removeAll(o, s.PID); err != nil {
		return err
	}
	word := "No daemon was running"
	if pid != 0 {
		word = fmt.Sprintf("Stopped the daemon (pid %d)", pid)
	}
	_, err = fmt.Fprintf(t.stdout, "%s; nothing of SCON is left.\n", word)
	return err
}

// removeAll takes away what is in the kernel and in the state directory, when
// no daemon lives there.
func (t *tool) removeAll(o express.Options, pid int) error {
	unlock, err := state.Lock(o.StateDir)
	if errors.Is(err, state.ErrLocked) {
		return fmt.Errorf("a daemon (pid %d) holds %s and does not answer at %s; end it with 'kill %d', then run 'scon down' again", pid, o.StateDir, o.Socket, pid)
	}
	if err != nil {
		return err
	}
	defer unlock()
	err = t.clean(o)
	if errors.Is(err, netns.ErrNotExist) {
		// Its devices went with it, and the programs with them.
		fmt.Fprintf(t.stderr, "scon: warning: %v; nothing to detach there\n", err)
		err = express.CleanAbandoned()
	}
	if err != nil {
		return err
	}
	return state.Remove(o.StateDir)
}

// clean takes away what is in the kernel, in the daemon's namespace.
func (t *tool) clean(o express.Options) error {
	if o.Netns == "" {
		return t.daemon.clean(o)
	}
	return netns.Do(o.Netns, func() error { return t.daemon.clean(o) })
}

// stop asks a daemon to end, waits until it has, and returns its process
// number, 0 when none answers.
func (t *tool) stop(c *api.Client) (pid int, err error) {
	status, err := c.Status()
	if errors.Is(err, api.ErrNotRunning) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	// A handle taken now is of the daemon, whoever has its number later.
	handle, err := unix.PidfdOpen(status.PID, 0)
	if err != nil {
		return 0, fmt.Errorf("watch the daemon (pid %d): %w", status.PID, err)
	}
	defer unix.Close(handle)
	if err := c.Stop(); err != nil {
		return 0, err
	}
	pace := cli.NewPace(t.stderr, "unhooking devices", unhooking(status))
	defer pace.End()
	for !ends(handle) {
		if pace.Stuck(time.Now()) {
			return 0, fmt.Errorf("the daemon (pid %d) has not ended and made no progress for %v; its log says why", status.PID, cli.Standstill)
		}
	}
	return status.PID, nil
}

// unhooking counts the hooks that a daemon has taken away: for each device the
// kernel takes some 20 ms.
func unhooking(s api.Status) func() (done, total int) {
	return func() (int, int) {
		left, err := express.Hooked(fmt.Sprintf("/proc/%d/ns/net", s.PID))
		if err != nil {
			return 0, 0
		}
		return len(s.Hooks) - left, len(s.Hooks)
	}
}

// ends waits a moment for the end of a process.
func ends(handle int) bool {
	fds := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(cli.PollInterval.Milliseconds()))
	return err == nil && n == 1
}
