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
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/programs"
	"github.com/scon-project/scon/internal/lab/bench"
	"github.com/scon-project/scon/internal/state"
)

// How long the agent may take to start and to stop.
const (
	agentStart = 20 * time.Second
	agentStop  = 30 * time.Second
)

// agent is "scon daemon" in the host's namespace.
type agent struct {
	cmd    *exec.Cmd
	says   bytes.Buffer // belongs to the process until ended is closed
	ended  chan struct{}
	client *api.Client
}

// agentDir has the agent's state and socket. It is short, as a socket's path has
// to be.
func (b *bed) agentDir() string { return filepath.Join(b.dir, "agent") }

// settings of the agent for a mode. What is ready in the pool before a start is
// said by fill.
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

// What a pool has without any demand, when it is filled in a hurry, and at most:
// the defaults, and enough for the largest start.
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
	a := &agent{
		cmd:    exec.Command(scon, "daemon", "--netns", b.host.name, "--config", config, "--state-dir", b.agentDir()),
		ended:  make(chan struct{}),
		client: api.Dial(state.Socket(b.agentDir())),
	}
	a.cmd.Stdout, a.cmd.Stderr = &a.says, &a.says
	// Ctrl-C is for the bench, which stops the agent in order.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := a.start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	err = b.group.add(a.cmd.Process.Pid)
	if err == nil {
		err = a.wait(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the agent: %w", err), a.stop())
	}
	return a, nil
}

// start starts the agent on a thread that lives as long as it does: with the
// thread that has started it the agent would end, too.
func (a *agent) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := a.cmd.Start()
		started <- err
		if err == nil {
			a.cmd.Wait()
			close(a.ended)
		}
	}()
	return <-started
}

// wait returns when the agent answers.
func (a *agent) wait(ctx context.Context) error {
	deadline := time.After(agentStart)
	for {
		_, err := a.client.Status()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.ended:
			return errors.New("it ended by itself")
		case <-deadline:
			return fmt.Errorf("no answer after %v: %w", agentStart, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// used is the agent's processor time so far.
func (a *agent) used() (time.Duration, error) { return bench.ProcessTime(a.cmd.Process.Pid) }

// stop ends the agent as a service manager does.
func (a *agent) stop() error {
	a.cmd.Process.Signal(syscall.SIGTERM)
	var err error
	select {
	case <-a.ended:
	case <-time.After(agentStop):
		a.cmd.Process.Kill()
		<-a.ended
		err = fmt.Errorf("still there after %v; killed", agentStop)
	}
	if err == nil && !a.cmd.ProcessState.Success() {
		err = errors.New(a.cmd.ProcessState.String())
	}
	if err != nil {
		return fmt.Errorf("stop the agent: %w: %s", err, bytes.TrimSpace(a.says.Bytes()))
	}
	return nil
}

// fill has the pool filled for n containers and as many more as are to be ready
// at any time, and waits until the agent has hooked them. It is not timed.
func (b *bed) fill(ctx context.Context, n int) error {
	if b.agent == nil || b.mode.Network != NetworkSconPool {
		return nil
	}
	networks := max(1, b.mode.Tenants)
	for t := range networks {
		f := api.StartupFill{Network: tenantName(b.mode, t), Count: (n+networks-1)/networks + minimum}
		if err := b.agent.client.FillStartupPool(f); err != nil {
			return fmt.Errorf("fill the pool: %w", err)
		}
	}
	return b.agent.settle(ctx)
}

// An agent is at rest when it has used less than little of the time in each of
// some looks in a row; settle waits no longer than settleAgent for it.
const (
	look        = 100 * time.Millisecond
	little      = 5 * time.Millisecond
	looks       = 3
	settleAgent = 10 * time.Second
)

// settle waits until the agent has done what nobody waits for: ports are hooked
// after they were made.
func (a *agent) settle(ctx context.Context) error {
	before, err := a.used()
	for n, end := 0, time.Now().Add(settleAgent); err == nil && n < looks && time.Now().Before(end); n++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(look):
		}
		var after time.Duration
		if after, err = a.used(); after-before >= little {
			n = -1
		}
		before = after
	}
	return err
}

// pooled counts the containers that came so far, and those that the pool had a
// namespace for.
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
