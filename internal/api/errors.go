package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/suggest"
)

var (
	// ErrNotRunning is the error of a Service's calls when nothing listens on the
	// socket.
	ErrNotRunning = errors.New("no service answers")

	// ErrInUse is the error of Listen when another process serves the socket.
	ErrInUse = errors.New("another process answers")
)

// notRunningError is an ErrNotRunning that names the service and how to start it.
type notRunningError struct {
	id     Identity
	socket string
}

func (e *notRunningError) Error() string {
	return fmt.Sprintf("no %s answers at %s; %s", e.id.Name, e.socket, e.id.Start)
}

func (e *notRunningError) Is(target error) bool { return target == ErrNotRunning }

// mostKnown is how many containers the error about an unknown one lists.
const mostKnown = 8

// UnknownContainerError is a Backend's error for an unknown container.
type UnknownContainerError struct {
	Name  string
	Known []string
}

func (e *UnknownContainerError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("no container %q: no running container is hooked; 'scon status' lists devices that are not hooked, with the reason", e.Name)
	}
	few := e.Known
	if len(few) > mostKnown {
		few = append(slices.Clone(few[:mostKnown]), fmt.Sprintf("and %d more, which 'scon status' lists", len(few)-mostKnown))
	}
	hint := suggest.Hint(e.Name, e.Known)
	if hint == "" {
		hint = ":"
	}
	return fmt.Sprintf("no container %q%s running and hooked are %s", e.Name, hint, strings.Join(few, ", "))
}

// SubjectError refuses a subject that is neither a flow nor a container.
type SubjectError struct {
	Subject string
	Err     error
}

func (e *SubjectError) Error() string {
	return fmt.Sprintf("%q is neither a flow nor a container: %v; a flow is written as tcp:172.17.0.2:43512->10.0.0.1:80", e.Subject, e.Err)
}

func (e *SubjectError) Unwrap() error { return e.Err }

// Error is a refusal by the service.
type Error struct {
	Status  int // HTTP status
	Message string
}

func (e *Error) Error() string { return e.Message }

// refusal is the body of every answer other than 200.
type refusal struct {
	Error string `json:"error"`
}
