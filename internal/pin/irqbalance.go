package pin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Irqbalance is the daemon that moves interrupts.
type Irqbalance struct {
	File string `json:"file"` // its settings
	Args string `json:"args"` // its IRQBALANCE_ARGS there
	Unit bool   `json:"unit"` // systemd runs it
}

// irqbalanceFiles are the settings files of distributions.
var irqbalanceFiles = []string{"/etc/default/irqbalance", "/etc/sysconfig/irqbalance"}

// findIrqbalance finds the daemon if it runs.
func (h *Host) findIrqbalance() (*Irqbalance, error) {
	names, err := filepath.Glob(h.path("/proc/[0-9]*/comm"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		comm, err := readFile(name)
		if err != nil || comm != "irqbalance" {
			continue
		}
		i := &Irqbalance{File: irqbalanceFiles[0]}
		for _, file := range irqbalanceFiles {
			if _, err := os.Stat(h.path(file)); err == nil {
				i.File = file
				break
			}
		}
		groups, err := readFile(filepath.Join(filepath.Dir(name), "cgroup"))
		i.Unit = err == nil && strings.Contains(groups, "irqbalance.service")
		i.Args, err = h.irqbalanceArgs(i.File)
		return i, err
	}
	return nil, nil
}

// irqbalanceArgs reads the arguments in its settings, "" if there are none.
func (h *Host) irqbalanceArgs(file string) (string, error) {
	content, err := os.ReadFile(h.path(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return argsIn(content), nil
}

// argsLine sets the arguments; the last one in a file counts.
var argsLine = regexp.MustCompile(`(?m)^[ \t]*IRQBALANCE_ARGS=(.*)$`)

func argsIn(content []byte) string {
	all := argsLine.FindAllSubmatch(content, -1)
	if len(all) == 0 {
		return ""
	}
	return strings.Trim(strings.TrimSpace(string(all[len(all)-1][1])), `"'`)
}

// The comment above our line, at the end of the file or in a separate file.
const (
	argsMark = "# by 'scon pin apply'; 'scon pin restore' takes this away"
	fileMark = "# by 'scon pin apply'; 'scon pin restore' takes this file away"
)

// ours is the section of the file that SCON writes.
var ours = regexp.MustCompile(`\n?(` + regexp.QuoteMeta(argsMark) + `|` + regexp.QuoteMeta(fileMark) + `)\nIRQBALANCE_ARGS="[^\n]*"\n`)

// setIrqbalance adds our line to the settings, or removes it if the rest has the same
// effect without it, and restarts the daemon.
func (h *Host) setIrqbalance(file, args string) error {
	path := h.path(file)
	content, err := os.ReadFile(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	missing = missing || strings.HasPrefix(string(content), fileMark)
	rest := ours.ReplaceAll(content, nil)
	line := fmt.Sprintf("\nIRQBALANCE_ARGS=%q\n", args)
	switch {
	case argsIn(rest) != args && missing:
		err = replaceFile(path, []byte(fileMark+line))
	case argsIn(rest) != args:
		err = replaceFile(path, []byte(string(rest)+"\n"+argsMark+line))
	case missing && len(rest) == 0:
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	default:
		err = replaceFile(path, rest)
	}
	if err != nil {
		return err
	}
	return h.Kernel.RestartIrqbalance()
}
