package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
)

// runTool runs a program of the distribution. The error carries the program's
// own message, or names the Debian package if the program is not there.
func runTool(cmd *exec.Cmd, debianPackage string) error {
	_, err := outputOf(cmd, debianPackage)
	return err
}

// outputOf is runTool that returns the program's output.
func outputOf(cmd *exec.Cmd, debianPackage string) (string, error) {
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is not in PATH; Debian package %s has it", cmd.Args[0], debianPackage)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd.Args[0], err, bytes.TrimSpace(out))
	}
	return string(out), nil
}
