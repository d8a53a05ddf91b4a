// Package launch starts containers for package startbench, in a process of its
// own: the helper "startup".
//
// The way of a container in the direct launcher:
//
//  1. NetNS: a network namespace is made.
//  2. AddCNI: libcni calls the network's plugins.
//  3. Cgroup: the runtime creates the container.
//  4. AttachIf: a microVM gets its tap.
//  5. StartVM: the runtime starts the container.
//  6. Ping: the peer, which is there from the beginning, has an answer.
//
// With CRI, a client's RunPodSandbox stands for 1 to 5.
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

	"github.com/scon-project/scon/internal/lab/startbench"
)

// Bounds of one container's start and of one's removal.
const (
	startPatience  = 5 * time.Minute
	removePatience = 20 * time.Second
)

// removers remove containers at the same time.
const removers = 4

// launcher starts containers in one of the ways.
type launcher interface {
	// prepare makes what n more containers need and is not timed.
	prepare(n int) error
	// start starts the i-th of the prepared containers and notes its stages.
	start(ctx context.Context, i int, t *timeline) error
	// remove undoes prepare and start, whatever became of them.
	remove(ctx context.Context, i int) error
	// close ends what the launcher itself has begun.
	close() error
}

// Serve carries out an order and its commands until the input ends or a signal
// comes, and leaves nothing behind.
func Serve(in *json.Decoder, out *json.Encoder) error {
	// The launcher's threads change namespaces; the first stays what it is.
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
				cancel(err) // also in the middle of a command
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

// session is an order at work.
type session struct {
	launcher launcher
	networks []*network // that containers are attached to in turns
	prefix   string
	// Containers are numbered through: up to removed they are gone, up to
	// started they were started, up to prepared they can be.
	removed, started, prepared int
	adds                       int // of DoAdd, for names that differ
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

// start starts all that is prepared.
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

// together calls fn for each of some containers at once, or some at a time.
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

// timeline notes the stages of one container.
type timeline struct {
	stages []startbench.Stage
}

// stage calls fn and notes how long it took.
func (t *timeline) stage(name string, fn func() error) error {
	begin := now()
	err := fn()
	t.stages = append(t.stages, startbench.Stage{Name: name, Begin: begin, End: now()})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// now is CLOCK_MONOTONIC, which is the same in all processes.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // it is everywhere
	}
	return t.Nano()
}
