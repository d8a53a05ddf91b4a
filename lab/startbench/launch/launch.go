// Package launch starts containers for package startbench. It runs in a separate
// process, the helper "startup".
//
// Stages of a container in the direct launcher:
//
//  1. NetNS: a network namespace is made.
//  2. AddCNI: libcni calls the network's plugins.
//  3. Cgroup: the runtime creates the container.
//  4. AttachIf: a microVM gets its tap.
//  5. StartVM: the runtime starts the container.
//  6. Ping: the peer, which exists from the beginning, gets an answer.
//
// With CRI, one RunPodSandbox replaces 1 to 5.
package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/lab/startbench"
)

// Timeouts of the start and of the removal of one container.
const (
	startPatience  = 5 * time.Minute
	removePatience = 20 * time.Second
)

// removers is the number of containers that are removed at a time.
const removers = 4

// launcher starts containers: without an engine, or by CRI.
type launcher interface {
	// prepare prepares n more containers. It is not timed.
	prepare(n int) error
	// start starts the i-th prepared container and records its stages.
	start(ctx context.Context, i int, t *timeline) error
	// remove undoes prepare and start, even if they failed.
	remove(ctx context.Context, i int) error
	// close stops the launcher's own processes.
	close() error
}

// Serve carries out an order and its commands until the end of the input or a
// signal. It removes everything that it made.
func Serve(in *json.Decoder, out *json.Encoder) error {
	// The launcher's threads change namespaces; the main thread keeps its own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var order startbench.Order
	if err := in.Decode(&order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	commands := make(chan startbench.Command)
	go func() {
		for {
			var c startbench.Command
			if err := in.Decode(&c); err != nil {
				if errors.Is(err, io.EOF) {
					err = context.Canceled
				}
				cancel(err) // also during a command
				close(commands)
				return
			}
			commands <- c
		}
	}()

	s, err := open(ctx, order)
	if encodeErr := out.Encode(report(0, nil, err)); err != nil || encodeErr != nil {
		return errors.Join(err, encodeErr)
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case c, ok := <-commands:
			if !ok {
				break
			}
			if err := out.Encode(s.carryOut(ctx, c)); err != nil {
				return errors.Join(err, s.close())
			}
		}
	}
	return s.close()
}

func report(begun int64, containers []startbench.Container, err error) startbench.Report {
	r := startbench.Report{Begun: begun, Containers: containers}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// session is the state of an order.
type session struct {
	launcher launcher
	networks []*network // containers are attached to them cyclically
	prefix   string
	// Containers have consecutive numbers: those below removed are removed, those
	// below started were started, those below prepared are prepared.
	removed, started, prepared int
	adds                       int // of DoAdd, for unique names
}

func open(ctx context.Context, o startbench.Order) (s *session, err error) {
	s = &session{prefix: o.Prefix}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for i := range o.Networks {
		n, err := openNetwork(o, i)
		if err != nil {
			return s, err
		}
		s.networks = append(s.networks, n)
		if err := n.openPeer(ctx); err != nil {
			return s, err
		}
	}
	s.launcher, err = newLauncher(ctx, o, s.networks)
	return s, err
}

func newLauncher(ctx context.Context, o startbench.Order, n []*network) (launcher, error) {
	switch {
	case o.Launcher == startbench.LauncherCRI:
		return openCRI(ctx, o, n)
	case o.Runtime == startbench.RuntimeMicroVM:
		return newDirect(o, n, newMicroVM(o)), nil
	default:
		r, err := newOCI(o)
		return newDirect(o, n, r), err
	}
}

func (s *session) carryOut(ctx context.Context, c startbench.Command) startbench.Report {
	switch c.Do {
	case startbench.DoPrepare:
		s.prepared += c.Count
		return report(0, nil, s.launcher.prepare(c.Count))
	case startbench.DoStart:
		return s.start(ctx, c)
	case startbench.DoAdd:
		return s.add(ctx, c)
	case startbench.DoClear:
		return report(0, nil, s.clear())
	}
	return report(0, nil, fmt.Errorf("no command %q", c.Do))
}

// start starts all prepared containers.
func (s *session) start(ctx context.Context, c startbench.Command) startbench.Report {
	if ready := s.prepared - s.started; ready != c.Count {
		return report(0, nil, fmt.Errorf("start %d containers: %d are prepared", c.Count, ready))
	}
	first := s.started
	s.started = s.prepared
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	begun, containers, err := together(c, func(i int, t *timeline) error {
		return s.launcher.start(ctx, first+i, t)
	})
	return report(begun, containers, err)
}

// together calls fn for each container, all at once or c.Parallel at a time.
func together(c startbench.Command, fn func(i int, t *timeline) error) (begun int64, done []startbench.Container, err error) {
	lines := make([]timeline, c.Count)
	errs := make([]error, c.Count)
	todo := make(chan int, c.Count)
	for i := range c.Count {
		todo <- i
	}
	close(todo)
	workers := c.Parallel
	if workers == 0 || workers > c.Count {
		workers = c.Count
	}
	var group sync.WaitGroup
	gate := make(chan struct{})
	for range workers {
		group.Go(func() {
			<-gate
			for i := range todo {
				errs[i] = fn(i, &lines[i])
			}
		})
	}
	begun = now()
	close(gate)
	group.Wait()
	for i, line := range lines {
		done = append(done, startbench.Container{ID: fmt.Sprint(i), Stages: line.stages})
	}
	return begun, done, errors.Join(errs...)
}

// clear removes every container.
func (s *session) clear() error {
	n := s.prepared - s.removed
	ctx, cancel := context.WithTimeout(context.Background(), removePatience*time.Duration(1+n/removers))
	defer cancel()
	errs := make([]error, n)
	todo := make(chan int, n)
	for i := range n {
		todo <- i
	}
	close(todo)
	first := s.removed
	s.removed, s.started = s.prepared, s.prepared
	var group sync.WaitGroup
	for range removers {
		group.Go(func() {
			for i := range todo {
				errs[i] = s.launcher.remove(ctx, first+i)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (s *session) close() error {
	var errs []error
	if s.launcher != nil {
		errs = append(errs, s.clear(), s.launcher.close())
	}
	for _, n := range s.networks {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// timeline records the stages of one container.
type timeline struct {
	stages []startbench.Stage
}

// stage calls fn and records its duration.
func (t *timeline) stage(name string, fn func() error) error {
	begin := now()
	err := fn()
	t.stages = append(t.stages, startbench.Stage{Name: name, Begin: begin, End: now()})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// now returns CLOCK_MONOTONIC in nanoseconds, which is the same in all processes.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every kernel has this clock
	}
	return t.Nano()
}
