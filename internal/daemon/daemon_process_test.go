package daemon_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/state"
)

// process is a child.
type process struct {
	*api.Client
	t     *testing.T
	cmd   *exec.Cmd
	log   string        // file
	stdin io.Closer     // ends it
	ready chan struct{} // closed when its socket answers
	ended chan struct{} // closed when it has ended
	err   error         // then: how
}

// launch starts a child in device. It ends with the test.
func (b *bed) launch(o task) *process {
	b.t.Helper()
	spec, err := json.Marshal(o)
	if err != nil {
		b.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	log, err := os.CreateTemp(b.dir, "log")
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	p := &process{
		Client: api.Dial(o.Socket), t: b.t, log: log.Name(),
		ready: make(chan struct{}), ended: make(chan struct{}),
		cmd: exec.Command("nsenter", "--mount="+b.mounts(), "--net="+b.Node(lab.Device), self),
	}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	p.cmd.Stderr = log
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	p.stdin = stdin
	go func() {
		defer close(p.ended)
		words := bufio.NewReader(stdout)
		if line, _ := words.ReadString('\n'); line == readyWord {
			close(p.ready)
		}
		_, _ = io.Copy(io.Discard, words)
		p.err = p.cmd.Wait()
	}()
	b.t.Cleanup(p.end)
	return p
}

// end ends the process with the test.
func (p *process) end() {
	p.stdin.Close()
	if err := p.wait(); err != nil && !p.killed() {
		p.t.Errorf("the daemon ended with %v", err)
	}
	if p.t.Failed() {
		words, _ := os.ReadFile(p.log)
		p.t.Logf("log of process %d:\n%s", p.cmd.Process.Pid, words[max(0, len(words)-8<<10):])
	}
}

// wait returns how the process ended.
func (p *process) wait() error {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-after(patience):
		p.t.Errorf("process %d does not end", p.cmd.Process.Pid)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return p.err
}

func (p *process) killed() bool {
	var exit *exec.ExitError
	return errors.As(p.err, &exit) && exit.ExitCode() == -1
}

// kill ends the process with SIGKILL.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	<-p.ended
}

// down ends the daemon as `scon down` does.
func (p *process) down() {
	p.t.Helper()
	if err := p.Stop(); err != nil {
		p.t.Fatal(err)
	}
	if err := p.wait(); err != nil {
		p.t.Fatalf("the daemon ended with %v", err)
	}
}

// words is what the process has logged.
func (p *process) words() string {
	p.t.Helper()
	words, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(words)
}

// refused waits for a daemon that must not start, and returns what it said.
func (p *process) refused() string {
	p.t.Helper()
	select {
	case <-p.ready:
		p.t.Fatal("the daemon started")
	case <-p.ended:
	}
	if p.err == nil {
		p.t.Fatal("the daemon ended without an error")
	}
	p.err = nil // as it should be
	return p.words()
}

// stateDir is where daemons of the test live.
func (b *bed) stateDir() string { return filepath.Join(b.dir, "state") }

// task is that of a daemon with the test's configuration.
func (b *bed) task() task {
	return task{
		Config: b.config, StateDir: b.stateDir(), Socket: state.Socket(b.stateDir()), Clsact: b.clsact,
	}
}

// up starts the daemon, and waits until it answers.
func (b *bed) up() {
	b.t.Helper()
	b.daemon = b.launch(b.task())
	select {
	case <-b.daemon.ready:
	case <-b.daemon.ended:
		b.t.Fatalf("the daemon ended with %v: %s", b.daemon.err, b.daemon.words())
	}
}

// clean does what `scon down` does when no daemon lives.
func (b *bed) clean() error {
	o := b.task()
	o.Clean = true
	p := b.launch(o)
	if err := p.wait(); err != nil {
		p.err = nil
		return fmt.Errorf("%w: %s", err, p.words())
	}
	return nil
}
