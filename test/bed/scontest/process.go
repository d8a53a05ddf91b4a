package scontest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/lab"
)

// Process is a daemon, or a process that is about to become one.
type Process struct {
	*api.Client // of express; other services have the methods of api.Service
	t           *testing.T
	Cmd         *exec.Cmd
	Patience    time.Duration // how long it may take to end; 0 for Patience
	log         string        // file
	ready       chan struct{} // closed when its socket answers
	ended       chan struct{} // closed when it has ended
	err         error         // valid once ended is closed
}

// Launch starts a process in node device. The end of the test stops it.
func (b *Bed) Launch(o Task) *Process {
	b.T.Helper()
	args, env, err := o.command(b.Dir)
	if err != nil {
		b.T.Fatal(err)
	}
	log, err := os.CreateTemp(b.Dir, "log")
	if err != nil {
		b.T.Fatal(err)
	}
	defer log.Close()
	p := &Process{
		Client: dial(o), t: b.T, log: log.Name(),
		ready: make(chan struct{}), ended: make(chan struct{}),
		Cmd: exec.Command("nsenter", slices.Concat([]string{"--mount=" + b.Mounts(), "--net=" + b.Node(lab.Device)}, b.runner(o.Service), args)...),
	}
	p.Cmd.Env = append(os.Environ(), env...)
	p.Cmd.Stdout, p.Cmd.Stderr = log, log
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		b.T.Fatal(err)
	}
	go p.watch()
	b.T.Cleanup(p.end)
	return p
}

// dial returns a client of the service that carries out a task. Calls of express alone fail
// at another service.
func dial(o Task) *api.Client {
	service := string(cmp.Or(o.Service, state.Express))
	return &api.Client{Service: api.Connect(api.Identity{Service: service, Name: service}, o.Socket)}
}

// run runs the process. The thread that starts it must outlive it: the process is
// killed when that thread ends, and so with the test.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.Cmd.Start()
	started <- err
	if err == nil {
		p.err = p.Cmd.Wait()
		close(p.ended)
	}
}

// watch waits until this process answers at the socket.
func (p *Process) watch() {
	for {
		if s, err := p.Process(); err == nil && s.PID == p.Cmd.Process.Pid {
			close(p.ready)
			return
		}
		select {
		case <-p.ended:
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// end stops the process at the end of the test.
func (p *Process) end() {
	_ = p.Signal(syscall.SIGTERM)
	if err := p.Wait(); err != nil && !p.killed() {
		p.t.Errorf("the daemon ended with %v", err)
	}
	if p.t.Failed() {
		words, _ := os.ReadFile(p.log)
		p.t.Logf("log of process %d:\n%s", p.Cmd.Process.Pid, words[max(0, len(words)-64<<10):])
	}
}

// Wait waits for the end of the process and returns its error.
func (p *Process) Wait() error {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-after(cmp.Or(p.Patience, Patience)):
		p.t.Errorf("process %d does not exit; its threads wait in %s", p.Cmd.Process.Pid, p.waits())
		_ = p.Signal(syscall.SIGQUIT) // its goroutines go to the log
		select {
		case <-p.ended:
		case <-after(Patience):
			_ = p.Cmd.Process.Kill()
			<-p.ended
		}
	}
	return p.err
}

// waits lists where in the kernel the threads of the process wait: their functions, and the
// whole stacks of those that do not wait for each other or for files.
func (p *Process) waits() string {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.Cmd.Process.Pid)) // the pattern is valid
	var all []string
	for _, dir := range threads {
		function, err := os.ReadFile(filepath.Join(dir, "wchan"))
		if err != nil {
			continue // it has ended
		}
		all = append(all, string(function))
		if stack, err := os.ReadFile(filepath.Join(dir, "stack")); err == nil && !strings.Contains(string(function), "futex") && !strings.Contains(string(function), "poll") {
			all[len(all)-1] += ":\n" + string(stack)
		}
	}
	return strings.Join(all, ", ")
}

func (p *Process) killed() bool {
	var exit *exec.ExitError
	return errors.As(p.err, &exit) && exit.ExitCode() == -1
}

// Signal sends the process a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.Cmd.Process.Signal(s) }

// Kill ends the process with SIGKILL.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	<-p.ended
}

// Terminate stops the daemon with SIGTERM, as systemd does.
func (p *Process) Terminate() {
	p.t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		p.t.Fatalf("the daemon ended with %v", err)
	}
}

// Down stops the daemon as `scon down` does.
func (p *Process) Down() {
	p.t.Helper()
	if err := p.Stop(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		p.t.Fatalf("the daemon ended with %v", err)
	}
}

// Log returns the log of the process.
func (p *Process) Log() string {
	p.t.Helper()
	words, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(words)
}

// Refused waits for a daemon that must fail to start, and returns its log.
func (p *Process) Refused() string {
	p.t.Helper()
	if p.Starts() {
		p.t.Fatal("the daemon started")
	}
	if p.err == nil {
		p.t.Fatal("the daemon ended without an error")
	}
	p.err = nil // expected
	return p.Log()
}

// StateDir returns the state directory of the test's daemons.
func (b *Bed) StateDir() string { return filepath.Join(b.Dir, "state") }

// Task returns the task of a daemon with the test's configuration.
func (b *Bed) Task() Task {
	return Task{
		Config: b.Config, StateDir: b.StateDir(), Socket: state.Express.Socket(b.StateDir()), Clsact: b.Clsact, PageSlots: b.Pages, SCON: b.SCON,
	}
}

// Serve starts another service beside the daemon, with the test's configuration,
// and waits until it answers.
func (b *Bed) Serve(s state.Service) *Process {
	b.T.Helper()
	o := b.Task()
	o.Service, o.Socket = s, s.Socket(o.StateDir)
	p := b.Launch(o)
	p.WaitReady()
	return p
}

// Up starts the daemon, and waits until it answers.
func (b *Bed) Up() {
	b.T.Helper()
	b.Daemon = b.Launch(b.Task())
	b.Daemon.WaitReady()
}

// WaitReady waits until the daemon answers.
func (p *Process) WaitReady() {
	p.t.Helper()
	if !p.Starts() {
		p.t.Fatalf("the daemon ended with %v: %s", p.err, p.Log())
	}
}

// Starts waits until the daemon answers or ends, and reports whether it answers.
func (p *Process) Starts() bool {
	select {
	case <-p.ready:
		return true
	case <-p.ended:
		return false
	}
}

// WantFailure checks that the daemon ends with an error before it answers.
func (p *Process) WantFailure() {
	p.t.Helper()
	if p.Starts() {
		p.t.Errorf("the daemon starts: %s", p.Log())
		return
	}
	if p.err == nil {
		p.t.Error("the daemon ends without an error")
	}
	p.err = nil
}

// Clean does what `scon down` does when no daemon runs.
func (b *Bed) Clean() error {
	o := b.Task()
	o.Clean = true
	p := b.Launch(o)
	if err := p.Wait(); err != nil {
		p.err = nil
		return fmt.Errorf("%w: %s", err, p.Log())
	}
	return nil
}

// Resident returns the resident memory of the process in bytes, including the pages of
// the program and of the table that it maps.
func (p *Process) Resident() int64 {
	resident, _ := p.memory()
	return resident
}

// Private returns the private share of Resident in bytes: heap and stacks. The program's
// pages belong to the page cache, and the table is kernel memory in any case.
func (p *Process) Private() int64 {
	resident, shared := p.memory()
	return resident - shared
}

// memory returns the resident memory, and how much of it is mapped from files.
func (p *Process) memory() (resident, shared int64) {
	p.t.Helper()
	statm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Cmd.Process.Pid), "statm"))
	if err != nil {
		p.t.Fatal(err)
	}
	var size int64
	if _, err := fmt.Sscan(string(statm), &size, &resident, &shared); err != nil {
		p.t.Fatal(err)
	}
	page := int64(os.Getpagesize())
	return resident * page, shared * page
}

// ProcessorTime returns the processor time that the process has used.
func (p *Process) ProcessorTime() time.Duration {
	p.t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Cmd.Process.Pid), "stat"))
	if err != nil {
		p.t.Fatal(err)
	}
	// The command's name, in brackets, is the second of the fields.
	_, rest, _ := strings.Cut(string(stat), ") ")
	var user, system int64
	if _, err := fmt.Sscan(strings.Join(strings.Fields(rest)[11:13], " "), &user, &system); err != nil {
		p.t.Fatal(err)
	}
	return time.Duration(user+system) * time.Second / 100
}
