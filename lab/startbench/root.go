package startbench

import (
	"os"
	"path/filepath"
)

// writeRoot makes the root file system of all containers: busybox and the mount
// points.
func writeRoot(dir string) error {
	for _, d := range []string{"bin", "dev", "proc", "sys", "tmp", "etc", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	path, err := busybox.Path()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755)
}
