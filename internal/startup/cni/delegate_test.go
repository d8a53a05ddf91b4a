package cni

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A plugin that does not end is killed at the time limit, also if a process that left its
// group holds its pipes.
func TestDelegateLimit(t *testing.T) {
	defer func(d time.Duration) { delegateTimeout = d }(delegateTimeout)
	delegateTimeout = 100 * time.Millisecond
	dir := t.TempDir()
	for name, script := range map[string]string{
		"hangs":    "#!/bin/sh\nsleep 60\n",
		"detaches": "#!/bin/sh\nsetsid sleep 5 & sleep 60\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Delegate(t.Context(), name, Request{Command: "DEL", Path: dir})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want a deadline that is exceeded", name, err)
		}
	}
}

// A plugin that prints without end is killed, also if it goes on when nobody reads.
func TestDelegateOutput(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"stdout":  "#!/bin/sh\nexec yes\n",
		"stderr":  "#!/bin/sh\nexec yes >&2\n",
		"ignores": "#!/bin/sh\nhead -c 2000000 /dev/zero 2>/dev/null\nsleep 60\n",
		"ends":    "#!/bin/sh\nhead -c 2000000 /dev/zero 2>/dev/null\nexit 0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Delegate(t.Context(), name, Request{Command: "ADD", Path: dir})
		if !errors.Is(err, ErrOutput) {
			t.Errorf("%s: %v, want that it printed too much", name, err)
		}
	}
}
