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

// helperProgram has a GPU copy: internal/pipe/copier/cuda.
const helperProgram = "scon-pipe-cuda"

// lookPatience is how long it may take to find a device.
const lookPatience = 20 * time.Second

// Configured is New with the helper that is installed, if a device shall copy.
func Configured(device bool, log *slog.Logger) func(*slog.Logger, sync.Locker) engine.Carrier {
	if !device {
		return New("")
	}
	helper, err := FindHelper()
	if err != nil {
		log.Warn("no device copies for the pipe, processors do", "error", err)
	}
	return New(helper)
}

// FindHelper returns the path of the program for New: beside
// this one, or in $PATH.
func FindHelper() (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), helperProgram)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(helperProgram)
	if err != nil {
		return "", fmt.Errorf("%s is not there: make cuda", helperProgram)
	}
	return path, nil
}

// FindDevice returns the name of the device that a helper beside this program finds.
func FindDevice() (name string, err error) {
	helper, err := FindHelper()
	if err != nil {
		return "", err
	}
	return LookForDevice(helper)
}

// LookForDevice asks a copy helper for the device that it finds.
func LookForDevice(helper string) (name string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, helper, "look").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return "", errors.New(string(bytes.TrimSpace(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w", helper, err)
	}
	return string(bytes.TrimSpace(out)), nil
}
