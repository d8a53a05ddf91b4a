// Package system makes Debian systems from packages, and runs commands in each as on a
// machine of its own: files, processes, mounts, control groups.
package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Archive makes DIR/SUITE.tar, unless it is there: Debian's suite with what is essential,
// and packages, separated by commas. It needs mmdebstrap and root.
func Archive(dir, suite, packages string) (path string, err error) {
	path = filepath.Join(dir, suite+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	settings, err := exec.Command("apt-config", "dump").Output()
	if err != nil {
		return "", fmt.Errorf("missing: apt, whose Debian mirror has the packages: %w", err)
	}
	args := []string{"--quiet", "--variant=minbase", "--include=" + packages}
	for line := range strings.Lines(string(settings)) { // proxies, and mirrors that are not renewed
		if strings.HasPrefix(line, "Acquire::Check-") || strings.HasPrefix(line, "Acquire::http") {
			args = append(args, "--aptopt="+strings.TrimSuffix(strings.TrimSpace(line), ";"))
		}
	}
	partial := path + ".partial"
	f, err := Create(partial)
	if err != nil {
		return "", err
	}
	f.Close()
	defer os.Remove(partial)
	cmd := exec.Command("mmdebstrap", append(args, "--format=tar", suite, partial)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mmdebstrap %s: %w: %s", suite, err, out)
	}
	return path, os.Rename(partial, path)
}

// Create makes a file whose owner is that of its folder.
func Create(path string) (*os.File, error) {
	info, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	of := info.Sys().(*syscall.Stat_t)
	return f, f.Chown(int(of.Uid), int(of.Gid))
}

// Command prepares a command of the shell for a user of a new system whose files are in an
// archive, with flags of unshare(1); repository is this one's folder, whose commit the
// system has as /srv/scon.bundle. The system is gone when the command ends, or its input.
func Command(archive, repository, user, command string, flags ...string) *exec.Cmd {
	script := filepath.Join(repository, "test", "bed", "system", "enter.sh")
	cmd := exec.Command(script, append([]string{archive, repository, user, command}, flags...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it ends its process group
	return cmd
}
