package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scon-project/scon/internal/host/netns"
)

// grace is the time that a run may take beyond its own duration.
const grace = 10 * time.Second

// patience is the time that a process may take to exit.
const patience = 5 * time.Second

// Peer is a running peer process.
type Peer struct {
	node    string
	command *exec.Cmd
	orders  io.WriteCloser
	answers chan answer // closed when the process ends
}

// Options for Start.
type Options struct {
	// Node is the peer's name in errors.
	Node string
	// Netns is the name or path of the peer's namespace.
	Netns string
	// Args are the arguments with which this executable calls Main.
	Args []string
}

// Start starts a peer process in a namespace.
func Start(o Options) (*Peer, error) {
	command := exec.Command("/proc/self/exe", o.Args...)
	command.Stderr = os.Stderr
	// Preemption signals would only interrupt system calls.
	command.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	// Ctrl-C must only reach the bench, which then ends its peers.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	orders, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start peer %s: %w", o.Node, err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start peer %s: %w", o.Node, err)
	}
	if err := netns.Do(o.Netns, command.Start); err != nil {
		return nil, fmt.Errorf("start peer %s: %w", o.Node, err)
	}
	p := &Peer{node: o.Node, command: command, orders: orders, answers: make(chan answer, 2)}
	go p.read(output)
	return p, nil
}

// read forwards the answers of the process until it exits.
func (p *Peer) read(output io.Reader) {
	defer close(p.answers)
	decoder := json.NewDecoder(output)
	for {
		var a answer
		if decoder.Decode(&a) != nil {
			return
		}
		p.answers <- a
	}
}

// Close ends the process, also during a run.
func (p *Peer) Close() error {
	p.orders.Close()
	stop := time.AfterFunc(patience, func() { p.command.Process.Kill() })
	defer stop.Stop()
	for range p.answers { // drain the remaining answers
	}
	if err := p.command.Wait(); err != nil {
		return fmt.Errorf("end peer %s: %w", p.node, err)
	}
	return nil
}

// Run has two peers exchange messages. After an error, including a cancelled
// context, both may still be running and can only be closed.
func Run(ctx context.Context, server, driver *Peer, spec Spec) (served, driven Report, err error) {
	if err := spec.check(); err != nil {
		return Report{}, Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, spec.Duration+time.Duration(spec.WarmUp+spec.Count)*time.Millisecond+grace)
	defer cancel()

	if err := server.order(order{Role: serve, Spec: spec}); err != nil {
		return Report{}, Report{}, err
	}
	listening, err := server.answer(ctx)
	if err != nil {
		return Report{}, Report{}, err
	}
	spec.Address = spec.reachAt(listening.Port)
	if err := driver.order(order{Role: drive, Spec: spec}); err != nil {
		return Report{}, Report{}, err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		served, err = server.report(ctx)
		return err
	})
	both.Go(func() (err error) {
		driven, err = driver.report(ctx)
		return err
	})
	if err := both.Wait(); err != nil {
		return Report{}, Report{}, err
	}
	return served, driven, nil
}

func (p *Peer) order(o order) error {
	if err := json.NewEncoder(p.orders).Encode(o); err != nil {
		return fmt.Errorf("send peer %s the order to %s: %w", p.node, o.Role, err)
	}
	return nil
}

func (p *Peer) answer(ctx context.Context) (answer, error) {
	select {
	case <-ctx.Done():
		return answer{}, fmt.Errorf("peer %s: %w", p.node, ctx.Err())
	case a, ok := <-p.answers:
		if !ok {
			return answer{}, fmt.Errorf("peer %s ended unexpectedly", p.node)
		}
		if a.Error != "" {
			return answer{}, fmt.Errorf("peer %s: %s", p.node, a.Error)
		}
		return a, nil
	}
}

func (p *Peer) report(ctx context.Context) (Report, error) {
	a, err := p.answer(ctx)
	if err != nil {
		return Report{}, err
	}
	if a.Report == nil {
		return Report{}, errors.New("peer " + p.node + " sent no report")
	}
	return *a.Report, nil
}
