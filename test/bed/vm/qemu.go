package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/test/bed/needs"
)

// newerSuite is a suite with a newer QEMU than Debian 12: the first release whose igb
// device has virtual functions.
const newerSuite = "bookworm-backports"

// emulator returns the command that runs QEMU: this machine's, or the newer one for
// Options.Hardware.
func (m machine) emulator(ctx context.Context, o Options) ([]string, error) {
	if len(o.Hardware) > 0 {
		command, err := m.fetchNewer(ctx)
		if err != nil {
			return nil, fmt.Errorf("fetch QEMU of %s: %w", newerSuite, err)
		}
		return command, nil
	}
	return []string{m.qemu}, nil
}

// needs returns an error that names the programs that a guest needs and this machine lacks.
func (m machine) needs(o Options) error {
	all := []needs.Program{depmod, {Name: "xz", Package: "xz-utils"}, {Name: "dpkg-deb", Package: "dpkg"}, {Name: "apt-get", Package: "apt"}}
	if len(o.Hardware) == 0 {
		all = append([]needs.Program{{Name: m.qemu, Package: m.pkg}}, all...)
	}
	if o.System != "" {
		all = append(all, mmdebstrap)
	}
	return needs.Check(all...)
}

var (
	depmod     = needs.Program{Name: "depmod", Package: "kmod"}
	mmdebstrap = needs.Program{Name: "mmdebstrap", Package: "mmdebstrap"}
)

// fetchNewer unpacks the newer QEMU with all its libraries into the cache. It neither
// installs packages nor uses installed ones.
func (m machine) fetchNewer(ctx context.Context) ([]string, error) {
	arch, err := output(exec.CommandContext(ctx, "dpkg", "--print-architecture"))
	if err != nil {
		return nil, err
	}
	arch = strings.TrimSpace(arch)
	dir, err := Cached(arch, m.pkg+"-"+newerSuite, func(dir string) error {
		work := filepath.Join(dir, "apt")
		a, err := newApt(ctx, work, arch, newerSuite)
		if err != nil {
			return err
		}
		debs, err := a.downloadAll(ctx, "--target-release", newerSuite, m.pkg)
		if err != nil {
			return err
		}
		for _, deb := range debs {
			if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, dir)); err != nil {
				return err
			}
		}
		return os.RemoveAll(work)
	})
	if err != nil {
		return nil, err
	}
	loader, err := theOne(filepath.Join(dir, "lib*/ld-linux-*.so.*"))
	if err != nil {
		return nil, err
	}
	var libraries []string
	for _, pattern := range []string{"lib/*-linux-gnu", "usr/lib/*-linux-gnu"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		libraries = append(libraries, found...)
	}
	return []string{
		loader, "--library-path", strings.Join(libraries, ":"), filepath.Join(dir, "usr/bin", m.qemu),
		"-L", filepath.Join(dir, "usr/share/qemu"), "-L", filepath.Join(dir, "usr/share/seabios"),
	}, nil
}
