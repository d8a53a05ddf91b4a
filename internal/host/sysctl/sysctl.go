// Package sysctl writes kernel settings of the calling thread's network
// namespace.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Setting is a file below /proc/sys and its value.
type Setting struct {
	Name, Value string
}

// Set writes those settings that the kernel has: IPv6 and br_netfilter may be
// absent.
func Set(settings []Setting) error {
	for _, s := range settings {
		err := os.WriteFile("/proc/sys/"+s.Name, []byte(s.Value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sysctl %s=%s: %w", strings.ReplaceAll(s.Name, "/", "."), s.Value, err)
		}
	}
	return nil
}
