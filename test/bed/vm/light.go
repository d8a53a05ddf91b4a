package vm

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/scon-project/scon/test/bed/needs"
)

// Light writes the initrd of a guest that needs little memory and boots fast, and
// returns the kernel's path. The initrd has busybox, some modules as /NAME.ko, and an
// init for busybox's shell.
func Light(ctx context.Context, version, initrd string, init []byte, modules ...string) (image string, err error) {
	k, err := fetchKernel(ctx, version, runtime.GOARCH, false)
	if err != nil {
		return "", fmt.Errorf("fetch Linux %s: %w", version, err)
	}
	found, err := pickModules(k.modules, modules)
	if err != nil {
		return "", err
	}
	busybox, err := needs.Program{Name: "busybox", Package: "busybox-static"}.Path()
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return "", err
	}
	f, err := os.Create(initrd)
	if err != nil {
		return "", err
	}
	a := newArchive(f)
	for _, dir := range []string{"bin", "proc", "dev"} {
		a.dir(dir, 0o755)
	}
	a.file("bin/busybox", 0o755, program)
	a.file("init", 0o755, init)
	for _, name := range modules {
		a.file(name+".ko", 0o644, found[name])
	}
	return k.image, errors.Join(a.close(), f.Close())
}

// pickModules reads modules from an archive of writeModules.
func pickModules(name string, modules []string) (map[string][]byte, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, m := range modules {
		wanted[m+".ko"] = true
	}
	found := map[string][]byte{}
	for len(content) > 0 {
		entry, file, rest, err := nextEntry(content)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if base := path.Base(entry); wanted[base] {
			found[strings.TrimSuffix(base, ".ko")] = file
		}
		content = rest
	}
	for _, m := range modules {
		if found[m] == nil {
			return nil, fmt.Errorf("%s has no module %s", filepath.Base(filepath.Dir(name)), m)
		}
	}
	return found, nil
}

// nextEntry splits the first entry off an archive; see archive.entry.
func nextEntry(content []byte) (name string, file, rest []byte, err error) {
	const header = 110
	field := func(i int) int {
		var n int64
		if n, err = strconv.ParseInt(string(content[6+8*i:14+8*i]), 16, 32); err != nil {
			return 0
		}
		return int(n)
	}
	if len(content) < header || string(content[:6]) != "070701" {
		return "", nil, nil, fmt.Errorf("%s is not the header of an entry", hex.EncodeToString(content[:min(6, len(content))]))
	}
	size, nameSize := field(6), field(11)
	begin := (header + nameSize + 3) &^ 3
	end := begin + size
	if err != nil || nameSize < 1 || end > len(content) {
		return "", nil, nil, errors.New("an entry is longer than the archive")
	}
	return string(content[header : header+nameSize-1]), content[begin:end], content[min(len(content), (end+3)&^3):], nil
}
