package vm

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// archive writes the "newc" format of cpio, which kernels unpack at boot:
// Documentation/driver-api/early-userspace/buffer-format.rst of Linux. Root owns all
// files. Paths have no leading slash. close returns the first error.
type archive struct {
	w      io.Writer
	inodes int
	err    error
}

// Types of files, as in a mode of stat(2).
const (
	typeDir     = 0o040000
	typeFile    = 0o100000
	typeSymlink = 0o120000
)

func newArchive(w io.Writer) *archive { return &archive{w: w} }

func (a *archive) dir(name string, perm fs.FileMode) {
	a.entry(name, typeDir|uint32(perm), nil)
}

func (a *archive) file(name string, perm fs.FileMode, content []byte) {
	a.entry(name, typeFile|uint32(perm), content)
}

func (a *archive) symlink(name, target string) {
	a.entry(name, typeSymlink|0o777, []byte(target))
}

// parents writes the parent directories of a file.
func (a *archive) parents(name string) {
	above := ""
	for element := range strings.SplitSeq(path.Dir(name), "/") {
		if element == "." {
			return
		}
		above = path.Join(above, element)
		a.dir(above, 0o755)
	}
}

// close ends the archive; another archive may follow it.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

func (a *archive) entry(name string, mode uint32, content []byte) {
	a.inodes++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inodes, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	a.write([]byte(header))
	a.write(content)
}

// write writes b, padded to 4 bytes.
func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	if _, a.err = a.w.Write(b); a.err == nil {
		_, a.err = a.w.Write(make([]byte, -len(b)&3))
	}
}

// addTree adds the regular files of a directory under the path to.
func (a *archive) addTree(from, to string) error {
	a.parents(to)
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := path.Join(to, strings.TrimPrefix(file, from))
		if d.IsDir() {
			a.dir(name, 0o755)
			return nil
		}
		content, err := os.ReadFile(file)
		if err == nil {
			a.file(name, 0o644, content)
		}
		return err
	})
}
