package machine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Dockerd returns the command line of a Docker engine for a machine, whose containers are
// in a control group of that name.
func Dockerd(cgroup string) []string {
	return []string{
		"dockerd",
		// Works on every file system; the images are small.
		"--storage-driver=vfs",
		"--data-root=/run/docker-data",
		// The systemd driver would request groups from the host's systemd.
		"--exec-opt=native.cgroupdriver=cgroupfs",
		"--log-level=warn",
		// Without the slash it would be a child of this process's own group, which
		// differs between hierarchies.
		"--cgroup-parent=/" + cgroup,
	}
}

// RemoveCgroups removes a control group and all below it from every hierarchy:
// /sys/fs/cgroup is one (version 2), or has one in each folder (version 1). Processes in
// it must have ended.
func RemoveCgroups(name string) error {
	var tops []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, err := filepath.Glob(pattern + name)
		if err != nil {
			return err
		}
		tops = append(tops, found...)
	}
	var errs []error
	for _, top := range tops {
		var groups []string
		errs = append(errs, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return err
		}))
		for i := len(groups) - 1; i >= 0; i-- { // the deepest first
			errs = append(errs, os.Remove(groups[i]))
		}
	}
	return errors.Join(errs...)
}
