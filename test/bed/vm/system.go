package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// systemPackages are the packages of a whole system beside Debian's essential ones.
var systemPackages = []string{
	"systemd-sysv", "dbus", "docker.io", "iproute2", "iptables", "nftables", "procps", "socat", "kmod", "busybox-static", "netbase", "libssl3",
}

// systemOptions keep mmdebstrap's system small.
var systemOptions = []string{
	"--variant=minbase", `--aptopt=Apt::Install-Recommends "false"`,
	"--dpkgopt=path-exclude=/usr/share/locale/*",
}

// fetchSystem returns the archive of a minimal system of a Debian release, in which
// packages can be installed.
func fetchSystem(ctx context.Context, arch, suite string) (string, error) {
	name := fmt.Sprintf("system-%s-%08x", suite, crc32.ChecksumIEEE([]byte(strings.Join(append(systemPackages, systemOptions...), " "))))
	dir, err := Cached(arch, name, func(dir string) error { return makeSystem(ctx, filepath.Join(dir, "system.cpio"), arch, suite) })
	return filepath.Join(dir, "system.cpio"), err
}

func makeSystem(ctx context.Context, name, arch, suite string) (err error) {
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	packages := systemPackages
	if suite != baseSuite { // there, docker.io has its client
		packages = append([]string{"docker-cli"}, packages...)
	}
	args := append([]string{"mmdebstrap", "--quiet", "--architectures=" + arch, "--include=" + strings.Join(packages, ",")}, systemOptions...)
	cmd, err := foreign(ctx, arch, append(args, suite, "-", mirror)...)
	if err != nil {
		return err
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start mmdebstrap: %w", err)
	}
	f, err := os.Create(name)
	if err == nil {
		w := bufio.NewWriter(f)
		a := newArchive(w)
		err = a.addTar(stdout, func(name string) string { return path.Clean("/" + name)[1:] })
		a.file("etc/machine-id", 0o444, []byte(machineID))
		err = errors.Join(err, a.close(), w.Flush(), f.Close())
	}
	_, _ = io.Copy(io.Discard, stdout)
	if ended := cmd.Wait(); ended != nil {
		return fmt.Errorf("mmdebstrap: %w: %s", ended, complaints.String())
	}
	return err
}
