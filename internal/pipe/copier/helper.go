package copier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// helperProgram copies with a GPU: internal/pipe/copier/cuda.
const helperProgram = "scon-pipe-cuda"

// probeTimeout limits the search for a device.
const probeTimeout = 20 * time.Second

// Configured returns New with the installed helper if device is set. Without a helper it logs
// a warning, and CPUs copy.
func Configured(device bool, log *slog.Logger) func(*slog.Logger, sync.Locker) engine.Carrier {
	if !device {
		return New("")
	}
	helper, err := FindHelper()
	if err != nil {
		log.Warn("the pipe copies with CPUs: no copy helper", "error", err)
	}
	return New(helper)
}

// FindHelper returns the path of the helper program: in the directory of this program's
// executable, or in $PATH.
func FindHelper() (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), helperProgram)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(helperProgram)
	if err != nil {
		return "", fmt.Errorf("%s is not installed: build it with 'make cuda'", helperProgram)
	}
	return path, nil
}

// FindDevice returns the name of the device that the installed helper finds.
func FindDevice() (name string, err error) {
	helper, err := FindHelper()
	if err != nil {
		return "", err
	}
	return ProbeDevice(helper)
}

// ProbeDevice returns the name of the device that a helper finds. It runs the helper, for
// probeTimeout (20 s) at most; the error is the helper's own message if there is one.
func ProbeDevice(helper string) (name string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, helper, "probe").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return "", errors.New(string(bytes.TrimSpace(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w", helper, err)
	}
	return string(bytes.TrimSpace(out)), nil
}
