// Package state is the directory in which the services record themselves, so that `scon
// up` and `scon down` find them, also after a crash.
//
//	scon.sock, startup.sock, pipe.sock   the services' default sockets
//	lock, daemon.json, scon.log          of express
//	startup/lock ...                     of the startup service, with its records
//	broker/lock ...                      of the pipe's broker
//	pipe/                                mounted by containers: pipe.sock
//
// Each service has a directory with:
//
//	lock         held (flock) by the service while it runs
//	daemon.json  State
//	scon.log     the log of a service that `scon up` started; scon.log.old is the
//	             previous one
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

// DefaultDir is the default state directory.
const DefaultDir = "/run/scon"

var (
	// ErrCorrupt is the error of Read when daemon.json is invalid.
	ErrCorrupt = errors.New("corrupt")

	// ErrLocked is the error of Lock when the service already runs in the directory.
	ErrLocked = errors.New("another SCON is running")

	errHeld = fmt.Errorf("%w; 'scon down' stops it", ErrLocked)
)

// Service is one of SCON's services, by the name of its socket.
type Service string

// The services.
const (
	Express Service = "scon"
	Startup Service = "startup"
	Pipe    Service = "pipe"
)

// Dir returns the service's own directory, below the common state directory.
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

// Socket returns the service's default socket.
func (s Service) Socket(root string) string { return filepath.Join(root, string(s)+".sock") }

// State has what of a service's state `scon up` and `scon down` need.
type State struct {
	PID     int           `json:"pid"`
	Netns   string        `json:"netns"`  // as given by --netns, "" for the machine's own
	Socket  string        `json:"socket"` // absolute path
	Version string        `json:"version"`
	Config  config.Config `json:"config"`
}

// Log returns the path of the log of a service that `scon up` starts.
func Log(dir string) string { return filepath.Join(dir, "scon.log") }

// OldLog returns the path of the previous log.
func OldLog(dir string) string { return Log(dir) + ".old" }

func file(dir string) string { return filepath.Join(dir, "daemon.json") }

// Read reads the State of the service that runs in dir, or died there. The error wraps
// fs.ErrNotExist if there is none, ErrCorrupt if it is invalid; the next service
// overwrites it.
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

// Write writes the State of dir atomically, or into the file of an earlier one if the disk is
// full.
func (s State) Write(dir string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	content = append(content, '\n')
	draft := file(dir) + ".new"
	if err = os.WriteFile(draft, content, 0o600); err == nil {
		err = os.Rename(draft, file(dir))
	}
	if errors.Is(err, unix.ENOSPC) {
		_ = os.Remove(draft)
		err = os.WriteFile(file(dir), content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// Remove removes the files of the service below root, and its directory if that is empty;
// missing files are no error. The caller holds the lock. Express also removes root itself
// if it is empty.
func (s Service) Remove(root string) error {
	dir := s.Dir(root)
	paths := []string{s.Socket(root)}
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

// Files are the names of a service's files in its directory.
var Files = []string{"daemon.json", "daemon.json.new", "scon.log", "scon.log.old", "lock"}

// Make makes dir if it is missing. All users may traverse it, whatever the umask: the
// socket has its own mode.
func Make(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	err := os.MkdirAll(dir, 0o755)
	if at := (*fs.PathError)(nil); errors.As(err, &at) && at.Path == dir && errors.Is(err, fs.ErrExist) {
		// Another has made it, and perhaps removed it.
		if info, gone := os.Lstat(dir); errors.Is(gone, fs.ErrNotExist) || gone == nil && info.IsDir() {
			err = nil
		}
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed since
		}
	}
	if err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	return nil
}

// CheckOwn refuses a directory that another program keeps its files in: those with the names
// of a service's would be overwritten and removed. SCON's state, even if it is damaged, is no
// whole document without a process, and its lock is empty, unless both are damaged.
func CheckOwn(dir string) error {
	foreign := ""
	var s struct{ PID any }
	content, err := os.ReadFile(file(dir))
	if err == nil && json.Unmarshal(content, &s) == nil && s.PID == nil {
		foreign = file(dir)
	}
	info, noLock := os.Lstat(filepath.Join(dir, "lock"))
	if noLock == nil && (!info.Mode().IsRegular() || info.Size() > 0 && err != nil) {
		foreign = filepath.Join(dir, "lock")
	}
	if foreign != "" {
		return fmt.Errorf("use %s as state directory: %s is another program's: give another --state-dir, or --socket", dir, foreign)
	}
	return nil
}

// Lock makes dir if it is missing and locks it until the returned function is called or
// the process ends. The error wraps ErrLocked if another process holds the lock.
func Lock(dir string) (unlock func(), err error) {
	if err := CheckOwn(dir); err != nil {
		return nil, err
	}
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

// Held reports whether a process holds the lock of dir. It is false if that cannot be told,
// as only root may.
func Held(dir string) bool { return Flocked(filepath.Join(dir, "lock")) }

// Flocked is Held of any file or directory that is locked by flock(2).
func Flocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Dying is how long a killed process may hold its locks after its socket is closed.
const Dying = 500 * time.Millisecond

// Flock locks a file until the file is closed. It waits at most patience; then the error
// is EWOULDBLOCK.
func Flock(f *os.File, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || !time.Now().Before(end) {
			return err
		}
	}
}

// lock locks f, and refuses a file that was removed or replaced meanwhile: another process
// may hold the new file.
func lock(f *os.File) error {
	err := Flock(f, Dying)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errHeld
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
		return errHeld
	}
	return err
}
