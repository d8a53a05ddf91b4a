package changes

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// legacyLock is the file that iptables-legacy locks while it works.
const legacyLock = "/run/xtables.lock"

// legacy follows iptables-legacy, whose changes the kernel does not announce:
// each run that takes the lock ends with closing the lock file. So do runs
// that only read, and runs in other namespaces.
type legacy struct {
	*os.File // inotify
	out      *output
	lock     string
	buf      [4096]byte
}

// openLegacy watches the directory of the lock file, not the file: the first
// run creates the file, and a clean-up may remove it.
func openLegacy(out *output, l limits) (_ source, err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: inotify: %w", l.lock, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(l.lock), unix.IN_CLOSE|unix.IN_ONLYDIR); err != nil {
		f.Close()
		return nil, fmt.Errorf("watch %s: %w", l.lock, err)
	}
	return &legacy{File: f, out: out, lock: filepath.Base(l.lock)}, nil
}

func (l *legacy) next() error {
	n, err := l.Read(l.buf[:])
	if err != nil {
		return fmt.Errorf("watch lock of iptables-legacy: %w", err)
	}
	closed, lost := parseInotify(l.buf[:n], l.lock)
	if closed {
		l.out.emit(Event{Kind: Ruleset, Reason: "iptables-legacy released its lock", Stale: true})
	}
	if lost {
		l.out.emit(overrun("messages about the lock of iptables-legacy were lost"))
	}
	return nil
}

// parseInotify reports whether there are events about a file of that name, and
// whether events were lost.
func parseInotify(b []byte, name string) (found, lost bool) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size < 0 || size > len(b) {
			break
		}
		if string(bytes.TrimRight(b[:size], "\x00")) == name {
			found = true
		}
		if mask&(unix.IN_Q_OVERFLOW|unix.IN_IGNORED) != 0 {
			lost = true
		}
		b = b[size:]
	}
	return found, lost
}
