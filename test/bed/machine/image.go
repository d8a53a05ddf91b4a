package machine

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Image describes an image made of programs of this machine, without a registry; busybox
// is always in it.
type Image struct {
	Name     string
	Programs []string          // names of installed programs; their libraries follow
	Files    map[string]string // path in the image to contents
}

const (
	passwd = `root:x:0:0:root:/:/bin/sh
www-data:x:33:33:www-data:/:/bin/false
nobody:x:65534:65534:nobody:/:/bin/false
`
	group = `root:x:0:
www-data:x:33:
nogroup:x:65534:
`
)

// Write writes the image's root file system as tar, for `docker import`.
func (img Image) Write(w io.Writer) error {
	fsys := rootfs{tar: tar.NewWriter(w), seen: map[string]bool{}}
	for _, dir := range []string{"proc", "sys", "dev", "etc", "run", "var/log/nginx", "var/lib/nginx", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"} {
		fsys.dir(dir, 0o755)
	}
	fsys.dir("tmp", 0o1777)
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		fsys.symlink(name, "usr/"+name)
	}
	fsys.file("etc/passwd", 0o644, []byte(passwd))
	fsys.file("etc/group", 0o644, []byte(group))
	for name, contents := range img.Files {
		fsys.file(strings.TrimPrefix(name, "/"), 0o644, []byte(contents))
	}
	fsys.program("busybox")
	for _, name := range img.Programs {
		fsys.program(name)
	}
	for _, name := range []string{"sh", "sleep"} {
		fsys.symlink("usr/bin/"+name, "busybox")
	}
	return errors.Join(fsys.err, fsys.tar.Close())
}

// rootfs writes a tar file by file and keeps the first error.
type rootfs struct {
	tar  *tar.Writer
	seen map[string]bool
	err  error
}

func (r *rootfs) dir(name string, mode int64) {
	r.write(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (r *rootfs) symlink(name, target string) {
	r.write(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (r *rootfs) file(name string, mode int64, contents []byte) {
	r.write(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(contents))}, contents)
}

func (r *rootfs) write(h tar.Header, contents []byte) {
	if r.err != nil || r.seen[h.Name] {
		return
	}
	// Docker makes folders without an entry accessible to its own user only.
	if parent := path.Dir(path.Clean(h.Name)); parent != "." {
		r.dir(parent, 0o755)
	}
	r.seen[h.Name] = true
	if err := r.tar.WriteHeader(&h); err != nil {
		r.err = fmt.Errorf("%s: %w", h.Name, err)
		return
	}
	if _, err := r.tar.Write(contents); err != nil {
		r.err = fmt.Errorf("%s: %w", h.Name, err)
	}
}

// program adds an installed program as /usr/bin/NAME with its shared libraries.
func (r *rootfs) program(name string) {
	installed, err := exec.LookPath(name)
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	r.copy("usr/bin/"+path.Base(name), installed)
	libs, err := libraries(installed)
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	for _, lib := range libs {
		// The folder is resolved, since /lib is a link. The file keeps its
		// name and gets the contents of the link's target.
		dir, err := filepath.EvalSymlinks(filepath.Dir(lib))
		if err != nil {
			r.err = errors.Join(r.err, err)
			return
		}
		r.copy(strings.TrimPrefix(filepath.Join(dir, filepath.Base(lib)), "/"), lib)
	}
}

func (r *rootfs) copy(name, from string) {
	contents, err := os.ReadFile(from)
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	r.file(name, 0o755, contents)
}

// libraryPath finds the path in a line of ldd: "libc.so.6 => /lib/... (0x...)"
// or "/lib64/ld-linux-x86-64.so.2 (0x...)".
var libraryPath = regexp.MustCompile(`(?m)(?:^\s*|=> )(/\S+) \(0x`)

// libraries returns the shared libraries of a program, none for a static one: those that it is
// linked to, and the one that the C library loads when a thread ends by pthread_exit or is
// cancelled, without which it aborts the program.
func libraries(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	var libs []string
	for _, m := range libraryPath.FindAllSubmatch(out, -1) {
		libs = append(libs, string(m[1]))
		if unwinder := filepath.Join(filepath.Dir(string(m[1])), "libgcc_s.so.1"); filepath.Base(string(m[1])) == "libc.so.6" && !bytes.Contains(out, []byte(unwinder)) {
			libs = append(libs, unwinder)
		}
	}
	return libs, nil
}
