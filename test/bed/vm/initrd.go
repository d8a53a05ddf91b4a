package vm

import (
	"bufio"
	_ "embed"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"slices"
)

//go:embed init.sh
var initScript []byte

//go:embed job.sh
var jobScript []byte

// jobUnit runs the same job as a systemd service.
//
//go:embed job.service
var jobUnit []byte

// makeInitrd writes the initrd of a run and returns its path. The initrd is a sequence
// of archives, all of which the kernel unpacks.
func makeInitrd(o Options, archives ...string) (name string, err error) {
	f, err := os.CreateTemp("", "scon-initrd-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(f.Name())
		}
	}()
	for _, name := range archives {
		if err := appendFile(f, name); err != nil {
			return "", err
		}
	}
	if err := writeJob(f, o); err != nil {
		return "", err
	}
	return f.Name(), nil
}

func appendFile(w io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func writeJob(w io.Writer, o Options) error {
	buffered := bufio.NewWriter(w)
	a := newArchive(buffered)
	a.file("init", 0o755, initScript)
	a.file("job", 0o755, jobScript)
	if o.Systemd {
		a.parents("etc/systemd/system/job.service")
		a.file("etc/systemd/system/job.service", 0o644, jobUnit)
	}
	a.file("command", 0o644, []byte(o.Command))
	for _, to := range slices.Sorted(maps.Keys(o.Files)) {
		content, err := os.ReadFile(o.Files[to])
		if err != nil {
			return err
		}
		info, err := os.Stat(o.Files[to])
		if err != nil {
			return err
		}
		to = path.Clean("/" + to)[1:]
		a.parents(to)
		a.file(to, info.Mode().Perm(), content)
	}
	if err := a.close(); err != nil {
		return err
	}
	return buffered.Flush()
}
