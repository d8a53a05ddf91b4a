package vm

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Unpacked returns a directory of the cache with the files of packages of baseSuite, but
// not of those that they depend on. The directory's name begins with name. If apt has no
// Debian mirror, the error is ErrNoMirror.
func Unpacked(ctx context.Context, arch, name string, packages ...string) (string, error) {
	return Cached(arch, listed(name, packages), func(dir string) (err error) {
		work := filepath.Join(dir, "apt")
		defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
		a, err := newApt(ctx, work, arch, baseSuite)
		if err != nil {
			return err
		}
		debs, err := a.download(ctx, packages...)
		if err != nil {
			return err
		}
		for _, deb := range debs {
			if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, dir)); err != nil {
				return err
			}
		}
		return nil
	})
}

// listed returns the name of what a list of packages is in: another list has another.
func listed(name string, packages []string) string {
	return fmt.Sprintf("%s-%08x", name, crc32.ChecksumIEEE([]byte(strings.Join(packages, " "))))
}
