package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/internal/state"
)

// CNI answers a request of the CNI plugin, made by the process pid.
func (a *Agent) CNI(pid int, r cni.Request) (document []byte, failed bool) {
	return cni.Answer(r, plugin{a, pid})
}

// plugin is the agent for the requests of one process.
type plugin struct {
	*Agent
	pid int
}

func (p plugin) Add(at cni.Attachment, c *cni.Conf) (*types100.Result, error) {
	return p.add(p.pid, at, c, "")
}

func (p plugin) Check(at cni.Attachment, c *cni.Conf) error {
	return p.Agent.Check(seenBy(p.pid, at.Netns), at, c)
}

// seenBy translates a path of another process to one of the agent.
func seenBy(pid int, path string) string {
	if pid <= 0 || pid == os.Getpid() {
		return path
	}
	for _, self := range []string{"/proc/self/", "/proc/thread-self/"} {
		if rest, ok := strings.CutPrefix(path, self); ok {
			path = fmt.Sprintf("/proc/%d/%s", pid, rest)
		}
	}
	return fmt.Sprintf("/proc/%d/root/%s", pid, strings.TrimPrefix(path, "/"))
}

// Alone answers a CNI request in this process (`scon cni`), when no agent does. DEL is
// recorded for the agent and succeeds; ADD makes the device in place or is refused,
// as agentDown of the configuration says. If an agent answers meanwhile, which was started after
// another's death, its answer is returned.
func Alone(r cni.Request) (document []byte, failed bool) {
	p := &alone{request: r}
	if document, failed = cni.Answer(r, p); p.forwarded {
		return p.document, p.failed
	}
	return document, failed
}

// errForwarded says that an agent has answered.
var errForwarded = errors.New("an agent answers")

type alone struct {
	request   cni.Request
	forwarded bool // the agent's answer:
	document  []byte
	failed    bool
}

// withoutPool configures an agent in a process that soon ends.
var withoutPool = config.Startup{Limits: config.Limits{Timeout: time.Minute}}

// with calls do with a temporary agent for the state directory of the
// configuration's socket, in the namespace of the latest agent.
func (p *alone) with(c *cni.Conf, do func(*Agent) error) error {
	dir := stateDirOf(socketOf(c))
	h, err := readHome(dir)
	if err != nil {
		return err
	}
	return netns.Do(h.Netns, func() error {
		here, err := netns.Inode("")
		if err != nil {
			return err
		}
		if h.Inode != 0 && here != h.Inode {
			return fmt.Errorf("no agent answers at %s, and its network namespace is another one: start the agent", socketOf(c))
		}
		for end := time.Now().Add(lockPatience); ; time.Sleep(100 * time.Millisecond) {
			a, err := New(Options{
				Config: withoutPool, StateDir: dir, Netns: h.Netns, Wait: true,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err == nil {
				return errors.Join(do(a), a.Close())
			}
			if !errors.Is(err, ErrBusy) {
				return err
			}
			if p.forward(socketOf(c)) {
				return errForwarded
			}
			if time.Now().After(end) {
				return fmt.Errorf("the agent at %s runs but does not answer: %w", socketOf(c), err)
			}
		}
	})
}

// forward reports whether an agent answers the request, which it may do as late as to scon-cni.
func (p *alone) forward(socket string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	p.document, p.failed, err = control.Forward(ctx, socket, p.request)
	p.forwarded = err == nil
	return p.forwarded
}

// socketOf returns the socket of the configuration's agent.
func socketOf(c *cni.Conf) string { return cmp.Or(c.Socket, state.Startup.Socket(state.DefaultDir)) }

func noAgent(c *cni.Conf) error {
	return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("no agent answers at %s: set startup.enabled in the configuration, then start it with 'scon up'", socketOf(c)), "agentDown is \"error\"")
}

func (p *alone) Add(at cni.Attachment, c *cni.Conf) (result *types100.Result, err error) {
	if c.AgentDown == cni.DownError {
		return nil, noAgent(c)
	}
	err = p.with(c, func(a *Agent) error {
		result, err = a.add(0, at, c, "")
		return err
	})
	return result, err
}

func (p *alone) Del(at cni.Attachment, c *cni.Conf) error {
	if c.AgentDown != cni.DownError && (p.with(c, func(a *Agent) error { return a.Del(at, c) }) == nil || p.forwarded) {
		return nil
	}
	return markDeleted(stateDirOf(socketOf(c)), keyOf(c.Name, at.ContainerID, at.IfName))
}

func (p *alone) Check(at cni.Attachment, c *cni.Conf) error {
	return p.with(c, func(a *Agent) error { return a.Check(at.Netns, at, c) })
}

func (p *alone) GC(c *cni.Conf) error {
	return p.with(c, func(a *Agent) error { return a.GC(c) })
}

func (p *alone) Status(c *cni.Conf) error {
	if c.AgentDown == cni.DownError {
		return noAgent(c)
	}
	return p.with(c, func(a *Agent) error { return a.Status(c) })
}
