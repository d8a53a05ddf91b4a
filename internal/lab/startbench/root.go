package startbench

import (
	"fmt"
	"os"
	"os/exec"
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
	path, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("busybox is missing: apt-get install busybox-static")
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755)
}
