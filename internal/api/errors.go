package api

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotRunning is the error of a Service's calls when nothing listens on the
	// socket.
	ErrNotRunning = errors.New("no service answers")

	// ErrInUse is the error of Listen when another daemon answers on the socket.
	ErrInUse = errors.New("another daemon answers")
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

// UnknownContainerError is a Backend's error for an unknown container.
type UnknownContainerError struct {
	Name  string
	Known []string
}

func (e *UnknownContainerError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("no container %q: no containers are known", e.Name)
	}
	return fmt.Sprintf("no container %q: known are %s", e.Name, strings.Join(e.Known, ", "))
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
