// Package output writes files that a user names.
package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Check returns an error if Write to path would fail. Commands call it before a long
// measurement. It does not change path.
func Check(path string) (err error) {
	defer describe(path, &err)
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.IsDir():
		return unix.EISDIR
	case err == nil && !info.Mode().IsRegular():
		return unix.Access(path, unix.W_OK)
	}
	f, err := draft(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Write replaces a file atomically. It writes through a path that is not a regular
// file, such as /dev/stdout or a symbolic link.
func Write(path string, content []byte) (err error) {
	defer describe(path, &err)
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, content, 0o644)
	}
	f, err := draft(path)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// draft creates a temporary file in the folder of path.
func draft(path string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
}

// describe makes an error name the file instead of its draft.
func describe(path string, err *error) {
	if *err == nil {
		return
	}
	reason := *err
	if about := new(fs.PathError); errors.As(reason, &about) {
		reason = about.Err
	}
	*err = fmt.Errorf("write %s: %w", path, reason)
}
