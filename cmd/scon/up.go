package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newUpCommand() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the daemon in the background",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := s.options(cmd, t)
			if err != nil {
				return err
			}
			args, err := s.arguments(cmd, o)
			if err != nil {
				return err
			}
			return t.up(o, args)
		},
	}
	s.addFlags(cmd)
	return cmd
}

// arguments are the command line of the daemon for the flags of up. Its paths
// are absolute: the daemon works in /.
func (s *settings) arguments(cmd *cobra.Command, o express.Options) ([]string, error) {
	args := []string{"daemon", "--socket", o.Socket, "--state-dir", o.StateDir}
	if o.Netns != "" {
		args = append(args, "--netns", o.Netns)
	}
	for _, name := range []string{"bridge", "uplink"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			args = append(args, "--"+name, f.Value.String())
		}
	}
	if cmd.Flags().Changed("config") {
		path, err := filepath.Abs(s.config)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", s.config, err)
		}
		args = append(args, "--config", path)
	}
	return args, nil
}

func (t *tool) up(o express.Options, args []string) error {
	if err := doctor.Require(); err != nil {
		return err
	}
	if _, err := netns.Inode(o.Netns); err != nil {
		return err
	}
	running, err := t.running(o)
	if err != nil {
		return err
	}
	if running != nil {
		return t.printUp("scon is already up", *running, o)
	}
	status, err := t.start(o, args)
	if err != nil {
		return err
	}
	return t.printUp("scon is up", status, o)
}

// running is the status of a daemon that was started with the same options,
// nil when none answers. Another daemon in the same place is an error.
func (t *tool) running(o express.Options) (*api.Status, error) {
	s, err := t.readState(o.StateDir)
	if err != nil {
		return nil, err
	}
	status, err := api.Dial(cmp.Or(s.Socket, o.Socket)).Status()
	if errors.Is(err, api.ErrNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	other := fmt.Sprintf("another SCON is running (pid %d, netns %s)", status.PID, cmp.Or(s.Netns, "the machine's own"))
	same, err := sameNetns(status.PID, o.Netns)
	switch {
	case err != nil:
		return nil, err
	case !same:
		return nil, fmt.Errorf("%s; give this one its own --state-dir", other)
	case s.PID == 0: // it did not say more
		return &status, nil
	case s.Socket != o.Socket:
		return nil, fmt.Errorf("%s with its socket at %s; stop it with 'scon down --socket %s'", other, s.Socket, s.Socket)
	case s.Version != o.Version:
		return nil, fmt.Errorf("%s: version %s, this is %s; to replace it: 'scon down', then 'scon up'", other, s.Version, o.Version)
	case !reflect.DeepEqual(s.Config, o.Config):
		return nil, fmt.Errorf("%s with other settings; stop it with 'scon down'", other)
	}
	return &status, nil
}

// readState is the state in dir, zero when there is none or it makes no sense.
func (t *tool) readState(dir string) (state.State, error) {
	s, err := state.Read(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return state.State{}, nil
	case errors.Is(err, state.ErrCorrupt):
		fmt.Fprintf(t.stderr, "scon: warning: %v; going on without it\n", err)
		return state.State{}, nil
	}
	return s, err
}

// sameNetns says whether a process is in a network namespace.
func sameNetns(pid int, namespace string) (bool, error) {
	theirs, err := netns.Inode(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return false, err
	}
	ours, err := netns.Inode(namespace)
	return theirs == ours, err
}

// start runs the daemon in a session of its own and waits until it answers.
func (t *tool) start(o express.Options, args []string) (status api.Status, err error) {
	log, err := createLog(o.StateDir)
	if err != nil {
		return status, err
	}
	defer log.Close()
	path, err := executable()
	if err != nil {
		return status, err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return status, fmt.Errorf("start the daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	pace := cli.NewPace(t.stderr, "hooking devices", hooking(o))
	defer pace.End()
	for {
		// Another daemon may answer there while ours finds out.
		status, err = api.Dial(o.Socket).Status()
		if err == nil && status.PID == cmd.Process.Pid {
			return status, nil
		}
		select {
		case <-ended:
			return status, fmt.Errorf("%s (log: %s)", lastWords(log.Name()), log.Name())
		case <-time.After(cli.PollInterval):
		}
		if pace.Stuck(time.Now()) {
			stopLate(cmd.Process, ended)
			return status, fmt.Errorf("the daemon did not answer at %s, made no progress for %v and was stopped (log: %s)", o.Socket, cli.Standstill, log.Name())
		}
	}
}

// hooking counts the hooks that a daemon has put in place, of those that it
// should.
func hooking(o express.Options) func() (done, total int) {
	expected := sync.OnceValue(func() (n int) {
		_ = netns.Do(o.Netns, func() error {
			topology, err := discover.Scan(discover.Options{Bridges: o.Config.Bridges, Uplinks: o.Config.Uplinks})
			n = len(topology.Ports)*len(datapath.PortHooks) + len(topology.Uplinks)*len(datapath.UplinkHooks)
			return err
		})
		return n
	})
	return func() (int, int) {
		done, err := express.Hooked(o.Netns)
		if err != nil || done == 0 {
			return 0, 0
		}
		return done, expected()
	}
}

// stopLate ends a daemon that did not answer: kindly, then by force. What it
// may leave in the kernel is for `scon down`.
func stopLate(p *os.Process, ended <-chan error) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(time.Second):
		_ = p.Kill()
		<-ended
	}
}

// createLog makes the daemon's log; the one before is kept.
func createLog(dir string) (*os.File, error) {
	if err := state.Make(dir); err != nil {
		return nil, err
	}
	err := os.Rename(state.Log(dir), state.OldLog(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("put the old log aside: %w", err)
	}
	f, err := os.OpenFile(state.Log(dir), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("create the log: %w", err)
	}
	return f, nil
}

// lastWords are why a daemon ended: its own error, else the last three lines
// of its log.
func lastWords(log string) string {
	f, err := os.Open(log)
	if err != nil {
		return "the daemon ended, and its log is gone"
	}
	defer f.Close()
	var lines []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if words, ok := strings.CutPrefix(sc.Text(), "scon: "); ok && !strings.HasPrefix(words, "warning: ") {
			return words
		}
		lines = append(lines, sc.Text())
		lines = lines[max(0, len(lines)-3):]
	}
	if len(lines) == 0 {
		return "the daemon ended without a word"
	}
	return "the daemon ended: " + strings.Join(lines, "; ")
}

func (t *tool) printUp(word string, s api.Status, o express.Options) error {
	var containers, uplinks []string
	for _, c := range s.Containers {
		containers = append(containers, cli.Printable(cmp.Or(c.Name, c.ID, c.Dev)))
	}
	for _, h := range s.Hooks {
		if h.Hook == "to_wire" {
			uplinks = append(uplinks, cli.Printable(h.Dev))
		}
	}
	_, err := fmt.Fprintf(t.stdout, "%s: %s, %s, pid %d\n  containers  %s\n  uplinks     %s\n  log         %s\n",
		word, s.State, s.Mode, s.PID,
		cmp.Or(few(containers), "none yet: they are hooked as they come"),
		cmp.Or(few(uplinks), "none yet: they are hooked as they come"),
		filepath.Clean(state.Log(o.StateDir)))
	return err
}

// few names the first of many.
func few(names []string) string {
	const most = 8
	slices.Sort(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
