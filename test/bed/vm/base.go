package vm

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// baseSuite is the Debian suite of the guest's programs, whatever its kernel.
const baseSuite = "bookworm"

// basePackages are the packages of the guest's programs.
var basePackages = []string{
	"busybox-static", "conntrack", "dash", "ethtool", "ipset", "iproute2", "iptables", "iputils-ping", "kmod",
	"mount", "netbase", "nftables", "procps", "socat", "usr-is-merged", "util-linux",
	"hostapd", "iw", "wireguard-tools",
}

// machineID is the machine ID of every guest. Without one, systemd runs its first-boot
// set-up.
const machineID = "5c04000000000000000000000000005c\n"

// fetchBase returns the archive of the guest's programs. With systemd it contains
// systemd and a service for tests.
func fetchBase(ctx context.Context, arch string, systemd bool) (string, error) {
	name, packages := "base", basePackages
	if systemd {
		name, packages = "base-systemd", append([]string{"systemd", "irqbalance"}, basePackages...)
	}
	dir, err := Cached(arch, listed(name, packages), func(dir string) error {
		work := filepath.Join(dir, "apt")
		a, err := newApt(ctx, work, arch, baseSuite)
		if err != nil {
			return err
		}
		debs, err := a.downloadAll(ctx, packages...)
		if err != nil {
			return err
		}
		if err := writeBase(ctx, filepath.Join(dir, "base.cpio"), debs); err != nil {
			return err
		}
		return os.RemoveAll(work)
	})
	return filepath.Join(dir, "base.cpio"), err
}

func writeBase(ctx context.Context, name string, debs []string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	a := newArchive(w)
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "run", "root", "var", "etc", "usr", "usr/bin", "usr/sbin"} {
		a.dir(dir, 0o755)
	}
	for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
		a.dir("usr/"+link, 0o755)
		a.symlink(link, "usr/"+link)
	}
	a.symlink("var/run", "/run")
	a.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	a.file("etc/group", 0o644, []byte("root:x:0:\n"))
	a.file("etc/machine-id", 0o444, []byte(machineID))
	for _, deb := range debs {
		if err := a.addPackage(ctx, deb, isNeeded); err != nil {
			return err
		}
	}
	// Not busybox's shell, which prefers its applets to programs of the same name.
	a.symlink("usr/bin/sh", "dash")
	// Defaults of Debian's alternatives.
	for _, tool := range []string{"", "-save", "-restore"} {
		for _, family := range []string{"iptables", "ip6tables"} {
			a.symlink("usr/sbin/"+family+tool, "xtables-nft-multi")
		}
	}
	if err := a.close(); err != nil {
		return err
	}
	return w.Flush()
}

// isNeeded excludes documentation, Perl and Debian's own tools.
func isNeeded(name string) bool {
	return !strings.HasPrefix(name, "usr/share/") && !strings.HasPrefix(name, "var/") &&
		!strings.Contains(name, "perl") && !strings.Contains(name, "dpkg")
}
