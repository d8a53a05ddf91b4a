package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Cache returns the directory of downloads: $SCON_CACHE, or "scon" in the user's
// cache directory. It can be removed at any time; the next run fetches the latest
// packages.
func Cache() (string, error) {
	if dir := os.Getenv("SCON_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for kernels (SCON_CACHE sets one): %w", err)
	}
	return filepath.Join(dir, "scon"), nil
}

// Cached returns a directory of the cache. If it is missing, fill fills it:
// atomically, and one process at a time.
func Cached(arch, name string, fill func(dir string) error) (_ string, err error) {
	root, err := Cache()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(root, arch)
	dir := filepath.Join(parent, name)
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(parent, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(dir) {
		return dir, nil
	}
	// With the lock, these are of processes that were killed.
	left, err := filepath.Glob(filepath.Join(parent, name+".*"))
	if err != nil {
		return "", err
	}
	for _, tmp := range left {
		if err := os.RemoveAll(tmp); err != nil {
			return "", err
		}
	}
	tmp, err := os.MkdirTemp(parent, name+".")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fill(tmp); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// lock takes an exclusive lock. The end of the process releases it.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
