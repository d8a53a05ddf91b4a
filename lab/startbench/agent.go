package startbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/lab/bench"
)

// Timeouts of the agent's start and stop.
const (
	agentStart = 20 * time.Second
	agentStop  = 30 * time.Second
)

// agent is the startup service in the host's namespace, together with express.
type agent struct {
	services []*process
	client   *control.Client
}

// process is one of the two services.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer // owned by the process until ended is closed
	ended  chan struct{}
	asked  *api.Service
}

// agentDir returns the directory of the agent's state and socket. The path is short,
// as UNIX sockets require.
func (b *bed) agentDir() string { return filepath.Join(b.dir, "agent") }

// settings returns the agent's settings for a mode. fill sets how many namespaces
// the pool has before a start.
func (b *bed) settings(m Mode, networks []string) object {
	pool := object{"warm_target": 0, "minimum": 0, "maximum": 0}
	if m.Network == NetworkSconPool {
		pool = object{"warm_target": warmTarget, "minimum": minimum, "maximum": mostPooled, "memory_limit": "1GiB"}
	}
	startup := object{"enabled": true, "networks": networks, "address_cooldown": "1s", "pool": pool}
	if m.Admission {
		startup["limits"] = b.options.Limits.settings()
	}
	return object{"startup": startup}
}

// Sizes of a pool: without demand, the level below which it fills at full speed, and
// the maximum. They are the defaults, and enough for the largest start.
const (
	warmTarget = 32
	minimum    = 4
	mostPooled = 1024
)

// startAgent starts the agent for a mode and waits until it answers.
func (b *bed) startAgent(ctx context.Context, m Mode, networks []string) (*agent, error) {
	scon, err := programs.Find("scon")
	if err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(b.settings(m, networks))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(b.agentDir(), 0o755); err != nil {
		return nil, err
	}
	config := filepath.Join(b.agentDir(), "scon.yaml")
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return nil, err
	}
	startup := control.Dial(state.Startup.Socket(b.agentDir()))
	a := &agent{client: startup}
	for _, p := range []*process{
		{cmd: exec.Command(scon, "daemon"), asked: api.Dial(state.Express.Socket(b.agentDir())).Service},
		{cmd: exec.Command(scon, "startup", "serve"), asked: startup.Service},
	} {
		p.cmd.Args = append(p.cmd.Args, "--netns", b.host.name, "--config", config, "--state-dir", b.agentDir())
		err := p.start()
		if err == nil {
			a.services = append(a.services, p)
			err = b.group.add(p.cmd.Process.Pid)
		}
		if err == nil {
			err = p.wait(ctx)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start the agent: %w", err), a.stop())
		}
	}
	return a, nil
}

// start starts the process on a thread that lives as long as the process: Pdeathsig
// ends the process with the thread that started it.
func (p *process) start() error {
	p.ended = make(chan struct{})
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	// A process group of its own: the bench handles Ctrl-C and stops the agent in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
			close(p.ended)
		}
	}()
	return <-started
}

// wait returns when the process answers.
func (p *process) wait(ctx context.Context) error {
	deadline := time.After(agentStart)
	for {
		_, err := p.asked.Process()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ended:
			return errors.New("the process exited")
		case <-deadline:
			return fmt.Errorf("no answer after %v: %w", agentStart, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// used returns the processor time of both services so far.
func (a *agent) used() (sum time.Duration, err error) {
	for _, p := range a.services {
		t, err := bench.ProcessTime(p.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// stop ends the services as a service manager does, with SIGTERM.
func (a *agent) stop() (err error) {
	for _, p := range slices.Backward(a.services) {
		err = errors.Join(err, p.stop())
	}
	return err
}

func (p *process) stop() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	var err error
	select {
	case <-p.ended:
	case <-time.After(agentStop):
		p.cmd.Process.Kill()
		<-p.ended
		err = fmt.Errorf("did not exit within %v and was killed", agentStop)
	}
	if err == nil && !p.cmd.ProcessState.Success() {
		err = errors.New(p.cmd.ProcessState.String())
	}
	if err != nil {
		return fmt.Errorf("stop the agent: %w: %s", err, bytes.TrimSpace(p.output.Bytes()))
	}
	return nil
}

// fill makes the agent fill the pool for n containers on top of its minimum, and
// waits until their ports are hooked. It is not timed.
func (b *bed) fill(ctx context.Context, n int) error {
	if b.agent == nil || b.mode.Network != NetworkSconPool {
		return nil
	}
	networks := max(1, b.mode.Tenants)
	for t := range networks {
		f := control.StartupFill{Network: tenantName(b.mode, t), Count: (n+networks-1)/networks + minimum}
		if err := b.agent.client.FillStartupPool(f); err != nil {
			return fmt.Errorf("fill the pool: %w", err)
		}
	}
	return b.agent.settle(ctx)
}

// An agent is idle when it has used less than little processor time in each of
// polls intervals in a row. settle waits at most settleAgent for that.
const (
	pollInterval = 100 * time.Millisecond
	little       = 5 * time.Millisecond
	polls        = 3
	settleAgent  = 10 * time.Second
)

// settle waits until the agent has finished its background work: ports are hooked
// after their devices are made.
func (a *agent) settle(ctx context.Context) error {
	before, err := a.used()
	for n, end := 0, time.Now().Add(settleAgent); err == nil && n < polls && time.Now().Before(end); n++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollInterval):
		}
		var after time.Duration
		if after, err = a.used(); after-before >= little {
			n = -1
		}
		before = after
	}
	return err
}

// pooled returns the number of containers so far that got a namespace of the pool,
// and the number of all.
func (a *agent) pooled() (taken, all uint64, err error) {
	s, err := a.client.Startup()
	if err != nil {
		return 0, 0, err
	}
	for _, n := range s.Networks {
		if n.Pool != nil {
			taken, all = taken+n.Pool.Taken, all+n.Pool.Taken+n.Pool.Missed
		}
	}
	return taken, all, nil
}
