// Package state is the directory in which the services leave word of themselves,
// for `scon up` and `scon down` to find them by, also after a crash.
//
//	scon.sock, startup.sock, pipe.sock   the services' sockets, unless they are elsewhere
//	lock, daemon.json, scon.log          of express
//	startup/lock ...                     of the startup service, with its records
//	broker/lock ...                      of the pipe's broker
//	pipe/                                what containers mount: pipe.sock
//
// Each service has a directory with:
//
//	lock         held (flock) by the service as long as it lives
//	daemon.json  State
//	scon.log     the log of a service that `scon up` started, scon.log.old of
//	             the one before
package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
)

// DefaultDir is the state directory of a service that is given none.
const DefaultDir = "/run/scon"

var (
	// ErrCorrupt is what Read ends with when daemon.json makes no sense.
	ErrCorrupt = errors.New("corrupt")

	// ErrLocked is what Lock ends with when the service lives here already.
	ErrLocked = errors.New("another SCON is running")
)

// Service is one of SCON's services, by the name of its socket.
type Service string

// The services.
const (
	Express Service = "scon"
	Startup Service = "startup"
	Pipe    Service = "pipe"
)

// Dir is the service's own directory, below the state directory of all.
func (s Service) Dir(root string) string {
	switch s {
	case Startup:
		return filepath.Join(root, "startup")
	case Pipe:
		return filepath.Join(root, "broker")
	default:
		return root
	}
}

// Socket is where the service listens unless told otherwise.
func (s Service) Socket(root string) string { return filepath.Join(root, string(s)+".sock") }

// State is what `scon up` and `scon down` have to know of a service.
type State struct {
	PID     int           `json:"pid"`
	Netns   string        `json:"netns"`  // as given by --netns, "" for the machine's own
	Socket  string        `json:"socket"` // absolute path
	Version string        `json:"version"`
	Config  config.Config `json:"config"`
}

// Log is where `scon up` has the daemon's log written.
func Log(dir string) string { return filepath.Join(dir, "scon.log") }

// OldLog is the log of the daemon before.
func OldLog(dir string) string { return Log(dir) + ".old" }

func file(dir string) string { return filepath.Join(dir, "daemon.json") }

// Read is the State of the daemon that lives in dir, or that died there. The
// error wraps fs.ErrNotExist when there is none, ErrCorrupt when it cannot be
// understood; the next daemon writes it anew.
func Read(dir string) (State, error) {
	content, err := os.ReadFile(file(dir))
	if err != nil {
		return State{}, fmt.Errorf("read state: %w", err)
	}
	var s State
	dec := json.NewDecoder(bytes.NewReader(content))
	if err := dec.Decode(&s); err != nil {
		return State{}, fmt.Errorf("read state %s: %w: %v", file(dir), ErrCorrupt, err)
	}
	if s.PID < 1 || !filepath.IsAbs(s.Socket) {
		return State{}, fmt.Errorf("read state %s: %w: pid %d, socket %q", file(dir), ErrCorrupt, s.PID, s.Socket)
	}
	return s, nil
}

// Write makes s the State of dir, at once and whole.
func (s State) Write(dir string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	draft := file(dir) + ".new"
	if err := os.WriteFile(draft, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.Rename(draft, file(dir)); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// Remove takes away all that the service left below root, and its directory where
// that is possible; nothing there is no error. The caller holds the lock. Root
// itself goes with express, if no other service has anything there.
func (s Service) Remove(root string) error {
	dir, socket := s.Dir(root), s.Socket(root)
	paths := []string{socket, socket + ".new"}
	for _, name := range Files {
		paths = append(paths, filepath.Join(dir, name))
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove state: %w", err)
		}
	}
	_ = os.Remove(dir) // may hold other files, or be systemd's mount
	return nil
}

// Files are the names of what a service has in its directory.
var Files = []string{"daemon.json", "daemon.json.new", "scon.log", "scon.log.old", "lock"}

// Make makes dir where it is missing. Everybody may pass through it, whatever the
// umask: the socket has rights of its own.
func Make(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	return nil
}

// Lock makes dir where it is missing and holds it until the returned function
// is called or the process ends. The error wraps ErrLocked when another
// process holds it.
func Lock(dir string) (unlock func(), err error) {
	if err := Make(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock state directory %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// Dying is how long a process that was killed may still have its locks, when its
// socket is closed already.
const Dying = 500 * time.Millisecond

// Flock takes a file's lock until the file is closed. It waits for it so long at
// the most; then the error is EWOULDBLOCK.
func Flock(f *os.File, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || !time.Now().Before(end) {
			return err
		}
	}
}

// lock takes f's lock, and refuses one that was removed meanwhile: another
// process may hold the file that has its name now.
func lock(f *os.File) error {
	err := Flock(f, Dying)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	if err != nil {
		return err
	}
	held, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(held, named) {
		return ErrLocked
	}
	return err
}
