package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// suites maps each kernel to its Debian suite.
var suites = map[string]string{
	"6.1":    "bookworm",
	"6.12":   "bookworm-backports",
	"newest": "trixie-backports",
}

// Kernels returns the kernels that can be booted. "newest" is Debian's newest
// backport.
func Kernels() []string { return slices.Sorted(maps.Keys(suites)) }

// kernel is a kernel to boot.
type kernel struct {
	image   string // path of the kernel's image
	modules string // path of the archive of modules
}

// fetchKernel returns a kernel of Debian's flavour for virtual machines or, with
// hardware, of the flavour with drivers of real hardware.
func fetchKernel(ctx context.Context, version, arch string, hardware bool) (kernel, error) {
	suite, ok := suites[version]
	if !ok {
		return kernel{}, fmt.Errorf("unknown kernel: there are %s", strings.Join(Kernels(), ", "))
	}
	name, latest := "linux-"+version, "linux-image-cloud-"+arch
	if hardware {
		name, latest = name+"-hardware", "linux-image-"+arch
	}
	// The name of the directory depends on the list of modules.
	name = fmt.Sprintf("%s-%08x", name, crc32.ChecksumIEEE([]byte(strings.Join(wanted, " "))))
	dir, err := Cached(arch, name, func(dir string) error {
		work := filepath.Join(dir, "work")
		debs, err := downloadKernel(ctx, work, arch, suite, latest)
		if err != nil {
			return err
		}
		root := filepath.Join(work, "root")
		for _, deb := range debs {
			if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, root)); err != nil {
				return err
			}
		}
		if err := unpackKernel(ctx, root, dir); err != nil {
			return err
		}
		return os.RemoveAll(work)
	})
	return kernel{image: filepath.Join(dir, "vmlinuz"), modules: filepath.Join(dir, "modules.cpio")}, err
}

// downloadKernel downloads the image on which the metapackage latest depends, and the
// further packages into which newer images are split.
func downloadKernel(ctx context.Context, work, arch, suite, latest string) ([]string, error) {
	a, err := newApt(ctx, work, arch, suite)
	if err != nil {
		return nil, err
	}
	images, err := a.depends(ctx, suite, latest)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(images, func(p string) bool { return strings.HasPrefix(p, "linux-image-") })
	if i < 0 {
		return nil, fmt.Errorf("%s of %s depends on no image", latest, suite)
	}
	image := images[i]
	packages, err := a.depends(ctx, suite, image)
	if err != nil {
		return nil, err
	}
	download := []string{image + "/" + suite}
	for _, p := range packages {
		if strings.HasPrefix(p, "linux-binary-") || strings.HasPrefix(p, "linux-modules-") {
			download = append(download, p+"/"+suite)
		}
	}
	return a.download(ctx, download...)
}

func unpackKernel(ctx context.Context, root, dir string) error {
	image, err := theOne(filepath.Join(root, "boot/vmlinuz-*"), filepath.Join(root, "usr/lib/modules/*/vmlinuz"))
	if err != nil {
		return err
	}
	if err := os.Rename(image, filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	modules, err := theOne(filepath.Join(root, "lib/modules/*"), filepath.Join(root, "usr/lib/modules/*"))
	if err != nil {
		return err
	}
	return writeModules(ctx, modules, filepath.Join(dir, "modules.cpio"))
}

// wanted are the modules that guests need: networking, the network cards of
// Options.Hardware, and their dependencies.
var wanted = []string{
	"net/*", "lib/*", "crypto/*", "arch/*", "drivers/net/*.ko*", "drivers/net/vxlan/*", "drivers/net/ipvlan/*",
	"drivers/net/bonding/*", "drivers/net/wireguard/*", "drivers/net/ppp/*", "drivers/net/slip/*",
	"drivers/net/wireless/virtual/*",
	"drivers/net/ethernet/intel/igb/*", "drivers/net/ethernet/intel/igbvf/*", "drivers/dca/*", "drivers/i2c/algos/*",
}

// writeModules writes an archive of the modules in a directory, with the indices for
// modprobe.
func writeModules(ctx context.Context, modules, name string) (err error) {
	release := filepath.Base(modules)
	root, err := os.MkdirTemp(filepath.Dir(name), "modules.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	to := filepath.Join(root, "lib/modules", release)
	if err := moveWanted(modules, to); err != nil {
		return err
	}
	if err := decompress(ctx, to); err != nil {
		return err
	}
	program, err := depmod.Path()
	if err != nil {
		return err
	}
	if _, err := output(exec.CommandContext(ctx, program, "--basedir", root, release)); err != nil {
		return err
	}

	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	a := newArchive(w)
	if err := a.addTree(to, "usr/lib/modules/"+release); err != nil {
		return err
	}
	if err := a.close(); err != nil {
		return err
	}
	return w.Flush()
}

func moveWanted(from, to string) error {
	patterns := []string{"modules.*"}
	for _, w := range wanted {
		patterns = append(patterns, "kernel/"+w)
	}
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			dest := filepath.Join(to, strings.TrimPrefix(name, from))
			if err := os.MkdirAll(filepath.Dir(dest), 0o755); err != nil {
				return err
			}
			if err := os.Rename(name, dest); err != nil {
				return err
			}
		}
	}
	return nil
}

// decompress decompresses the modules, so that the guest need not do so.
func decompress(ctx context.Context, dir string) error {
	var compressed []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".xz") {
			compressed = append(compressed, path)
		}
		return err
	})
	if err != nil || len(compressed) == 0 {
		return err
	}
	if _, err := output(exec.CommandContext(ctx, "xz", append([]string{"--decompress"}, compressed...)...)); err != nil {
		return fmt.Errorf("%w (Debian's package xz-utils has xz)", err)
	}
	return nil
}

// theOne returns the only path that matches one of the patterns.
func theOne(patterns ...string) (string, error) {
	var all []string
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		all = append(all, paths...)
	}
	if len(all) != 1 {
		return "", fmt.Errorf("%d files match %s, want one", len(all), strings.Join(patterns, " or "))
	}
	return all[0], nil
}
