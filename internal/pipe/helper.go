package pipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// helperProgram has a GPU copy: internal/pipe/copier/cuda.
const helperProgram = "scon-pipe-cuda"

// lookPatience is how long it may take to find a device.
const lookPatience = 20 * time.Second

// FindCopyHelper returns the path of the program for Options.CopyHelper: beside
// this one, or in $PATH.
func FindCopyHelper() (string, error) {
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
