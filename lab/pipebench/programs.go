package pipebench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/needs"
)

// report is the report of one end of the load program.
type report struct {
	Bytes   float64 `json:"bytes"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_s"`
	// Bytes per second in the worst 100 ms, of the warm-up and the period; after it.
	Least      float64 `json:"least"`
	LeastAfter float64 `json:"least_after"`
	P50        float64 `json:"p50_us"`
}

const (
	warmSeconds    = 0.15
	measureSeconds = 0.4
	// manyWarmSeconds is the warm-up of many connections, until each has sent some
	// messages: the first message touches the pages of a ring.
	manyWarmSeconds = 1.5
	// runWarmSeconds is the warm-up of many connections of unmodified programs,
	// until all have been attached.
	runWarmSeconds = 10
	// afterSeconds is how long many connections go on after a change of rules.
	afterSeconds = 3
	// patience is the time limit for an end; 4096 connections take some seconds to
	// open.
	patience = 90 * time.Second
)

// exchange runs the load program at both ends.
func (b *bed) exchange(ctx context.Context, m mode, l load) (listened, connected report, err error) {
	l.wait, l.connections = cmp.Or(l.wait, "usual"), cmp.Or(l.connections, 1)
	address, port := b.address(m, 1)
	warm := warmSeconds
	if l.connections > 1 {
		warm = manyWarmSeconds
	}
	if m.run && l.connections > 1 {
		warm = runWarmSeconds
	}
	args := append(l.args(), "--warm", fmt.Sprint(warm), "--seconds", fmt.Sprint(measureSeconds))
	after := 0.0
	if l.rulesChange {
		after = afterSeconds
	}
	if b.options.small {
		args, after = append(args, "--warm", "0.01", "--seconds", "0.02"), after/100
	}
	args = append(args, "--after", fmt.Sprint(after))
	var files []*os.File
	if m.sockmap {
		if err := b.sockmap.serverPort(port); err != nil {
			return listened, connected, err
		}
		files, args = []*os.File{b.sockmap.file}, append(args, "--sockmap", "3")
	}
	from := 2
	if m.alone {
		from = 1
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	server, err := b.start(ctx, m, 1, loadProgram, files, append([]string{"listen", address, "--cpu", fmt.Sprint(b.listens)}, args...)...)
	if err != nil {
		return listened, connected, err
	}
	defer server.kill()
	if err := server.ready(); err != nil {
		return listened, connected, err
	}
	// One end adds the processor time of the broker and its helpers to its own.
	pids, err := b.broker.processes()
	if err != nil {
		return listened, connected, err
	}
	for _, pid := range pids {
		args = append(args, "--also", fmt.Sprint(pid))
	}
	client, err := b.start(ctx, m, from, loadProgram, files, append([]string{"connect", address, "--cpu", fmt.Sprint(b.connects)}, args...)...)
	if err != nil {
		return listened, connected, err
	}
	ended := make(chan error, 1)
	go func() {
		err := client.end(&connected)
		if err != nil {
			server.cancel() // it may wait forever
		}
		ended <- err
	}()
	if l.rulesChange {
		if err = server.expect("measured"); err == nil {
			err = b.broker.changeRules()
		}
		if err != nil {
			client.cancel()
		}
	}
	if err = errors.Join(<-ended, err); err != nil {
		return listened, connected, err
	}
	return listened, connected, server.end(&listened)
}

// program is a running program of examples/.
type program struct {
	name   string
	cmd    *exec.Cmd
	out    *bufio.Reader
	says   bytes.Buffer // standard error
	cancel context.CancelFunc
	over   bool
}

// runArgs make scon run a program on the pipe.
var runArgs = []string{"run", "--"}

// start starts a program of examples/ in container n.
func (b *bed) start(ctx context.Context, m mode, n int, name string, files []*os.File, args ...string) (p *program, err error) {
	path, err := programs.Find(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p = &program{name: name, cancel: cancel}
	if m.run {
		args = slices.Concat(runArgs, []string{path}, args)
		if path, err = programs.Find("scon"); err != nil {
			return nil, err
		}
	}
	p.cmd = exec.CommandContext(ctx, path, args...)
	p.cmd.Env = append(os.Environ(), "SCON_PIPE_SOCKET="+b.broker.socket)
	p.cmd.ExtraFiles = files
	p.cmd.Stderr = &p.says
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.out = bufio.NewReader(out)
		err = b.lab.Do(lab.Container(n), p.cmd.Start)
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// ready waits until the program listens.
func (p *program) ready() error { return p.expect("ready") }

// expect waits for a line of the program's output.
func (p *program) expect(want string) error {
	if line, err := p.out.ReadString('\n'); err != nil || line != want+"\n" {
		return errors.Join(fmt.Errorf("%s wrote %q instead of %s", p.name, line, want), p.end(nil))
	}
	return nil
}

// end waits for the program to exit, and parses its report if into is not nil.
func (p *program) end(into any) error {
	out, readErr := io.ReadAll(p.out)
	err := p.cmd.Wait()
	p.over = true
	p.cancel()
	if err != nil {
		return fmt.Errorf("run %s: %w: %s", p.name, err, bytes.TrimSpace(p.says.Bytes()))
	}
	if into == nil || readErr != nil || len(out) == 0 {
		return readErr
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("read the report of %s: %w: %s", p.name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// kill kills the program if it still runs.
func (p *program) kill() {
	p.cancel()
	if !p.over {
		_ = p.end(nil)
	}
}

// Programs of examples/.
const (
	loadProgram      = "scon-pipe-load"
	allreduceProgram = "scon-pipe-allreduce"
	chainProgram     = "scon-pipe-chain"
)

// runLibrary is the library that 'scon run' preloads.
const runLibrary = "libsconrun.so"

// checkPrograms returns an error if programs are missing.
func checkPrograms(apps bool) error {
	names := []string{loadProgram}
	if apps {
		names = []string{allreduceProgram, chainProgram}
	}
	var errs []error
	for _, name := range names {
		_, err := programs.Find(name)
		errs = append(errs, err)
	}
	if apps {
		errs = append(errs, needs.Check(needs.Program{Name: iperfProgram, Package: iperfProgram}))
	}
	return errors.Join(errs...)
}
