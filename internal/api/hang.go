package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/scon-project/scon/internal/httpconn"
)

// A service that is stopped or hangs accepts connections, as the kernel does that for it, and
// says nothing. An answer may take long without that: a full table is listed or flushed. So a
// second request, which needs nothing of the service's state, tells them apart.

const (
	// patience is how long a call waits before that request, and between two of them.
	patience = 500 * time.Millisecond
	// silence is how long the request may take: a call to a service that hangs fails after
	// three seconds.
	silence = 3*time.Second - patience
)

// ErrHangs is the error of a Service's calls when a process has the socket and says nothing.
var ErrHangs = errors.New("the service hangs")

// hangsError is an ErrHangs that names the process and what to do.
type hangsError struct {
	id      Identity
	socket  string
	pid     int  // 0 if it is of another PID namespace
	stopped bool // by a signal
}

func (e *hangsError) Error() string {
	what, end := "hangs", "end it"
	if e.pid != 0 {
		end = fmt.Sprintf("end it with 'kill -9 %d'", e.pid)
	}
	if e.stopped {
		what = "is stopped by a signal"
		end = fmt.Sprintf("'kill -CONT %d' lets it go on; or %s", e.pid, end)
	}
	return fmt.Sprintf("the %s%s at %s does not answer: it %s; %s: systemd starts another, or 'scon up', which goes on with what it has left",
		e.id.Name, ofPID(e.pid), e.socket, what, end)
}

func (e *hangsError) Is(target error) bool { return target == ErrHangs }

// busyError is the error of a call that a service which works has not answered in time.
type busyError struct {
	id     Identity
	socket string
	pid    int
	limit  time.Duration
}

func (e *busyError) Error() string {
	return fmt.Sprintf("the %s%s at %s runs, but has not answered within %v: it has much to do, or a part of it hangs; see its log, and ask again",
		e.id.Name, ofPID(e.pid), e.socket, e.limit)
}

func ofPID(pid int) string {
	if pid == 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// watched calls fn, whose request ends with the context that it is given, and ends that when
// the service hangs.
func (s *Service) watched(limit time.Duration, fn func(context.Context) error) error {
	whole, cancel := context.WithTimeoutCause(context.Background(), limit, &busyError{s.id, s.socket, 0, limit})
	defer cancel()
	ctx, fail := context.WithCancelCause(whole)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer fail(nil)
	watch.Go(func() {
		for {
			select {
			case <-time.After(patience):
			case <-ctx.Done():
				return
			}
			if hangs := s.probe(ctx); hangs != nil && ctx.Err() == nil {
				fail(hangs)
			}
		}
	})
	err := fn(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	why := context.Cause(ctx)
	if busy := (*busyError)(nil); errors.As(why, &busy) {
		busy.pid = int(s.pid.Load())
	}
	return why
}

// probe returns why a service that says nothing hangs, nil if it says anything: each service
// answers a path that it does not have, without its locks.
func (s *Service) probe(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, http.MethodGet, "http://scon/", nil)
	if err != nil {
		return err
	}
	resp, err := s.send(req)
	if err == nil {
		resp.Body.Close()
		return nil
	}
	if limited.Err() == nil && !errors.Is(err, syscall.EAGAIN) {
		return nil
	}
	return s.hangs()
}

func (s *Service) hangs() error {
	pid := int(s.pid.Load())
	return &hangsError{s.id, s.socket, pid, isStopped(pid)}
}

// send connects to the service, notes its process, that which listens, and sends a request.
func (s *Service) send(r *http.Request) (*http.Response, error) {
	conn, err := httpconn.Dial(s.socket)
	if err != nil {
		return nil, err
	}
	pid, _ := whoIs(conn)
	s.pid.Store(int32(pid))
	return httpconn.Ask(conn, r)
}

// isStopped reports whether a process is stopped, by a signal or a tracer.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// "42 (name) S ...": the name may contain anything.
	state := strings.TrimSpace(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")
}
