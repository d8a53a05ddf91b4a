package vm

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"strings"
)

// addPackage adds those files of a Debian package that keep accepts.
func (a *archive) addPackage(ctx context.Context, deb string, keep func(name string) bool) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = a.addTar(stdout, func(name string) string {
		if name = inUsr(name); keep(name) {
			return name
		}
		return ""
	})
	_, _ = io.Copy(io.Discard, stdout)
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("unpacking %s: %w", deb, err)
	}
	return nil
}

// addTar adds the files of a tar archive at the paths that place returns; "" leaves one
// out.
func (a *archive) addTar(r io.Reader, place func(name string) string) error {
	files := tar.NewReader(r)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := place(h.Name)
		if name == "" {
			continue
		}
		perm := h.FileInfo().Mode().Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			a.dir(name, perm)
		case tar.TypeSymlink:
			a.symlink(name, h.Linkname)
		case tar.TypeLink:
			a.symlink(name, "/"+place(h.Linkname))
		case tar.TypeReg:
			content, err := io.ReadAll(files)
			if err != nil {
				return err
			}
			a.file(name, perm, content)
		}
	}
}

// inUsr returns a path with /bin, /sbin and /lib* replaced by their directories in
// /usr, the targets of the guest's symbolic links.
func inUsr(name string) string {
	name = path.Clean("/" + name)[1:]
	top, _, _ := strings.Cut(name, "/")
	if top == "bin" || top == "sbin" || strings.HasPrefix(top, "lib") {
		return "usr/" + name
	}
	return name
}
