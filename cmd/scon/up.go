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
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newUpCommand() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the services that the settings enable, in the background",
		Long: `Start the services that the settings enable, in the background: express always,
the startup service with startup.enabled or docker.enabled, the pipe's broker
with pipe.enabled. --socket is that of express; the others are beside it in
--state-dir.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := s.options(cmd, t, t.unit(state.Express))
			if err != nil {
				return err
			}
			return t.up(o, func(u unit, o service.Options) ([]string, error) { return s.arguments(cmd, u, o) })
		},
	}
	s.addFlags(cmd)
	s.addDeviceFlags(cmd)
	return cmd
}

// arguments returns a service's command line for the flags of up. Its paths are
// absolute, since the service's working directory is /.
func (s *settings) arguments(cmd *cobra.Command, u unit, o service.Options) ([]string, error) {
	args := append(slices.Clone(u.command), "--socket", o.Socket, "--state-dir", o.StateDir)
	if o.Netns != "" {
		args = append(args, "--netns", o.Netns)
	}
	for _, name := range []string{"bridge", "uplink"} {
		if f := cmd.Flags().Lookup(name); f.Changed && u.Service == state.Express {
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

// of returns the options of a service, given those of express.
func (u unit) of(o service.Options) service.Options {
	if u.Service != state.Express {
		o.Socket = u.Socket(o.StateDir)
	}
	return o
}

// up starts the enabled services that do not run. Without express it starts no other
// service. If another service fails, the rest stays up: for the pipe up prints a warning,
// for the startup service it returns the error.
func (t *tool) up(o service.Options, arguments func(unit, service.Options) ([]string, error)) error {
	if err := doctor.Require(); err != nil {
		return err
	}
	if _, err := netns.Inode(o.Netns); err != nil {
		return err
	}
	defer turn(o.StateDir, state.Make)() // start says why it cannot be made
	var missing []unit
	for _, u := range t.units {
		pid, err := t.running(u, u.of(o))
		if err != nil {
			return err
		}
		if pid == 0 && u.enabled(o.Config) {
			missing = append(missing, u)
		}
	}
	var failed error
	for _, u := range missing {
		args, err := arguments(u, u.of(o))
		if err == nil {
			err = t.start(u, u.of(o), args)
		}
		switch {
		case err == nil:
		case u.Service == state.Express:
			return err
		case u.Service == state.Pipe:
			fmt.Fprintf(t.stderr, "scon: warning: the pipe broker did not start, all else runs: %v\n", err)
		default:
			failed = fmt.Errorf("%w; the other services are up, see 'scon status'", err)
		}
	}
	word := "scon is up"
	if len(missing) == 0 {
		word = "scon is already up"
	}
	return errors.Join(t.printUp(word, o), failed)
}

// turn waits until no other up or down is at work in a state directory, or for as long as one
// may stand still. find makes the directory or returns why there is none, then turn does not
// wait. The returned function lets the next one work.
func turn(dir string, find func(dir string) error) (end func() error) {
	for find(dir) == nil {
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a down has removed it since
		}
		if err != nil {
			break
		}
		err = state.Flock(f, cli.Standstill)
		held, _ := f.Stat()
		if named, gone := os.Stat(dir); err != nil || gone == nil && os.SameFile(held, named) {
			return f.Close
		}
		f.Close() // a down has removed the directory, and an up may have made another
	}
	return func() error { return nil }
}

// running returns the process ID of a service that runs with the same options, 0 if none
// answers. It stops a service of another version, which up then starts anew. A service with
// other options in the same state directory is an error.
func (t *tool) running(u unit, o service.Options) (pid int, err error) {
	s, err := t.readState(u.Dir(o.StateDir))
	if err != nil {
		return 0, err
	}
	p, err := u.process(cmp.Or(s.Socket, o.Socket))
	if p.PID == 0 || err != nil {
		return 0, err
	}
	other := "another SCON is running"
	if u.Service != state.Express {
		other = "another " + u.name + " is running"
	}
	other = fmt.Sprintf("%s (pid %d, netns %s)", other, p.PID, cmp.Or(s.Netns, "the machine's own"))
	same, err := sameNetns(p.PID, o.Netns)
	switch {
	case err != nil:
		return 0, err
	case !same:
		return 0, fmt.Errorf("%s; give this one its own --state-dir", other)
	case !u.enabled(o.Config):
		return 0, fmt.Errorf("%s, and the settings disable it; stop it with 'scon down'", other)
	case s.PID == 0: // the state file is missing
		return p.PID, nil
	case s.Socket != o.Socket:
		return 0, fmt.Errorf("%s with its socket at %s; stop it with 'scon down --socket %s'", other, s.Socket, s.Socket)
	case !reflect.DeepEqual(u.settings(s.Config), u.settings(o.Config)):
		return 0, fmt.Errorf("%s with other settings; 'scon reload' makes it take over those of its file, 'scon down' stops it", other)
	case s.Version != o.Version && ofSystemd(p.PID):
		return 0, fmt.Errorf("%s: version %s, this is %s; to replace it: 'systemctl restart %s'", other, s.Version, o.Version, u.unitName())
	case s.Version != o.Version:
		fmt.Fprintf(t.stderr, "scon: replacing the %s (pid %d) of version %s\n", u.name, p.PID, s.Version)
		return 0, t.replace(u, s.Socket)
	}
	return p.PID, nil
}

// replace ends a service that the next one replaces. A daemon whose maps the next one can
// read hands them over, as for 'systemctl restart': its Conentries go on.
func (t *tool) replace(u unit, socket string) error {
	if u.Service == state.Express {
		s, err := api.Dial(socket).Status()
		if err != nil {
			return err
		}
		if s.Layout == datapath.LayoutVersion {
			return handOver(s.PID)
		}
	}
	_, err := t.stop(u, socket)
	return err
}

// handsOver is how long a daemon may take to end with everything attached.
const handsOver = 5 * time.Second

// handOver makes a daemon end as handOverOn has it, and waits for its end.
func handOver(pid int) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("watch the daemon (pid %d): %w", pid, err)
	}
	defer unix.Close(handle)
	for end := time.Now().Add(handsOver); time.Now().Before(end); {
		// Again and again: one that executes itself again hears nothing for a moment.
		if err := unix.PidfdSendSignal(handle, unix.SIGUSR1, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ask the daemon (pid %d) to hand over: %w", pid, err)
		}
		if ends(handle) {
			return nil
		}
	}
	return fmt.Errorf("the daemon (pid %d) does not hand over; end it with 'kill -9 %[1]d', then run 'scon up' again", pid)
}

// unitName returns the name of the service's systemd unit.
func (u unit) unitName() string {
	if u.Service == state.Express {
		return "scon"
	}
	return "scon-" + string(u.Service)
}

// ofSystemd reports whether systemd started a process as a unit of SCON.
func ofSystemd(pid int) bool {
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(cgroup), "/scon") && strings.HasSuffix(strings.TrimSpace(string(cgroup)), ".service")
}

// readState reads the state in dir; it is zero if missing or corrupt.
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

// sameNetns reports whether a process is in a network namespace.
func sameNetns(pid int, namespace string) (bool, error) {
	theirs, err := netns.Inode(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return false, err
	}
	ours, err := netns.Inode(namespace)
	return theirs == ours, err
}

// start runs a service in a session of its own and waits until it answers.
func (t *tool) start(u unit, o service.Options, args []string) error {
	if err := state.CheckOwn(u.Dir(o.StateDir)); err != nil {
		return err
	}
	log, err := createLog(u.Dir(o.StateDir))
	if err != nil {
		return cmp.Or(noRoom(o.StateDir), err)
	}
	defer log.Close()
	path, err := executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", u.name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	progress := func() (int, int) { return 0, 0 }
	if u.Service == state.Express {
		progress = hooking(o)
	}
	pace := cli.NewPace(t.stderr, "hooking devices", progress)
	defer pace.End()
	for {
		// Another process may answer until ours fails to lock.
		if p, err := u.process(o.Socket); err == nil && p.PID == cmd.Process.Pid {
			return nil
		}
		select {
		case <-ended:
			if err := noRoom(u.Dir(o.StateDir)); err != nil { // nor for its message
				return fmt.Errorf("the %s ended: %w", u.name, err)
			}
			return fmt.Errorf("%s (log: %s)", lastWords(u.name, log.Name()), log.Name())
		case <-time.After(cli.PollInterval):
		}
		if pace.Stuck(time.Now()) {
			stopLate(cmd.Process, ended)
			return fmt.Errorf("the %s did not answer at %s, made no progress for %v and was stopped (log: %s)", u.name, o.Socket, cli.Standstill, log.Name())
		}
	}
}

// noRoom returns an error if no file can be written in a directory: then a service's message
// may be missing in its log. Root needs no permission.
func noRoom(dir string) error {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return nil
	}
	what := ""
	switch {
	case fs.Flags&unix.ST_RDONLY != 0:
		return fmt.Errorf("%s is read-only; mount it writable, or give another --state-dir", dir)
	case fs.Blocks > 0 && fs.Bavail == 0:
		what = "space"
	case fs.Files > 0 && fs.Ffree == 0:
		what = "inode"
	default:
		return nil
	}
	return fmt.Errorf("no %s is left in %s for its state and log; remove files there ('df %[2]s' and 'df -i %[2]s' show its use), or give another --state-dir", what, dir)
}

// hooking counts the hooks that a daemon has attached, and those that it will.
func hooking(o service.Options) func() (done, total int) {
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

// stopLate ends a service that did not answer, with SIGTERM, then SIGKILL. `scon
// down` removes what it leaves in the kernel.
func stopLate(p *os.Process, ended <-chan error) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(time.Second):
		_ = p.Kill()
		<-ended
	}
}

// createLog creates a service's log and keeps the previous one.
func createLog(dir string) (*os.File, error) {
	if err := state.Make(dir); err != nil {
		return nil, err
	}
	err := os.Rename(state.Log(dir), state.OldLog(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("rename the old log: %w", err)
	}
	f, err := os.OpenFile(state.Log(dir), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("create the log: %w", err)
	}
	return f, nil
}

// lastWords returns why a service ended: its error message, else the last three
// lines of its log.
func lastWords(name, log string) string {
	f, err := os.Open(log)
	if err != nil {
		return "the " + name + " ended, and its log is missing"
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
		return "the " + name + " ended without a message"
	}
	return "the " + name + " ended: " + strings.Join(lines, "; ")
}

// log says where a service's log is: in its file, or with systemd in the journal.
func (u unit) log(stateDir string) string {
	file := state.Log(u.Dir(stateDir))
	if _, err := os.Stat(file); err != nil {
		return "journalctl --unit " + u.unitName()
	}
	return filepath.Clean(file)
}

// naming is how long up waits for the names of containers, which the daemon finds after it has
// hooked their ports.
const naming = 3 * time.Second

// statusWithNames is the daemon's status once it knows what the containers are called, or cannot
// tell in time.
func statusWithNames(c *api.Client) (s api.Status, err error) {
	for end := time.Now().Add(naming); ; time.Sleep(20 * time.Millisecond) {
		s, err = c.Status()
		unnamed := slices.ContainsFunc(s.Containers, func(c api.Container) bool { return c.Name == c.Dev })
		if err != nil || !unnamed || time.Now().After(end) {
			return s, err
		}
	}
}

// printUp prints the services that run.
func (t *tool) printUp(word string, o service.Options) error {
	s, err := statusWithNames(api.Dial(o.Socket))
	if err != nil {
		return err
	}
	var containers, uplinks []string
	for _, c := range s.Containers {
		containers = append(containers, plain.Text(cmp.Or(c.Name, c.ID, c.Dev)))
	}
	for _, h := range s.Hooks {
		if h.Hook == "to_wire" {
			uplinks = append(uplinks, plain.Text(h.Dev))
		}
	}
	fmt.Fprintf(t.stdout, "%s: %s, %s, pid %d\n  containers  %s\n  uplinks     %s\n  log         %s\n",
		word, s.State, s.Mode, s.PID,
		cmp.Or(few(containers), "none yet: they are hooked when they appear"),
		cmp.Or(few(uplinks), "none yet: they are hooked when they appear"),
		t.units[0].log(o.StateDir))
	for _, u := range t.units[1:] {
		if p, err := u.process(u.Socket(o.StateDir)); err == nil && p.PID != 0 {
			fmt.Fprintf(t.stdout, "  %-10s  pid %d, log %s\n", u.Service, p.PID, u.log(o.StateDir))
		}
	}
	_, err = fmt.Fprintln(t.stdout, "See 'scon status' and 'scon top'; 'scon down' undoes it.")
	return err
}

// few lists the first names and counts the others.
func few(names []string) string {
	const most = 8
	slices.Sort(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
