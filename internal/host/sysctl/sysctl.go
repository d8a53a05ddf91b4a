// Package sysctl reads and writes kernel settings of the calling thread's network
// namespace.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Setting is a file below /proc/sys and its value.
type Setting struct {
	Name, Value string
}

// Set writes those settings that the kernel has: IPv6 and br_netfilter may be
// absent.
func Set(settings []Setting) error {
	for _, s := range settings {
		err := os.WriteFile("/proc/sys/"+s.Name, []byte(s.Value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sysctl %s=%s: %w", strings.ReplaceAll(s.Name, "/", "."), s.Value, err)
		}
	}
	return nil
}

// MakeWritable makes /proc/sys writable for the calling process, where a container's
// runtime has mounted it read-only. It takes CAP_SYS_ADMIN.
func MakeWritable() error {
	const dir = "/proc/sys"
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if s.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("make %s writable: %w", dir, err)
	}
	return nil
}

// Reader reads settings again and again. It keeps their files open: to look at a
// hundred a second costs a tenth of what it does to open them. Close ends it.
type Reader struct {
	files map[string]int
	used  map[string]bool // since the last Trim
}

// NewReader returns a Reader of no files.
func NewReader() *Reader { return &Reader{make(map[string]int), make(map[string]bool)} }

// Read returns the value of a setting, at most 256 bytes, without the end of the line.
func (r *Reader) Read(name string) (string, error) {
	r.used[name] = true
	var b [256]byte
	if fd, ok := r.files[name]; ok {
		if n, err := unix.Pread(fd, b[:], 0); err == nil {
			return strings.TrimRight(string(b[:n]), "\n"), nil
		}
		unix.Close(fd) // of a device that is gone; there may be another one of that name
		delete(r.files, name)
	}
	fd, err := unix.Open("/proc/sys/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		unix.Close(fd)
		return "", fmt.Errorf("sysctl %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	r.files[name] = fd
	return strings.TrimRight(string(b[:n]), "\n"), nil
}

// Trim closes the files of settings that were not read since the last time.
func (r *Reader) Trim() {
	for name, fd := range r.files {
		if !r.used[name] {
			unix.Close(fd)
			delete(r.files, name)
		}
	}
	clear(r.used)
}

// Close closes all files.
func (r *Reader) Close() {
	clear(r.used)
	r.Trim()
}
