package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/scon-project/scon/internal/pin"
)

// fakePinHost returns the machine whose /proc and /sys are in a script's
// $WORK/machine.
func fakePinHost() *pin.Host {
	work := os.Getenv("WORK")
	return &pin.Host{Root: filepath.Join(work, "machine"), Kernel: noKernel{}, State: filepath.Join(work, "kept")}
}

// noKernel has files only: every call of the kernel fails.
type noKernel struct{}

var errNoKernel = errors.New("a script's machine has only files")

func (noKernel) Veths(string, []pin.Namespace) (map[string]pin.Veth, error) { return nil, nil }

func (noKernel) Features(string, string) (map[string]bool, error) { return nil, errNoKernel }

func (noKernel) SetFeatures(string, string, map[string]bool) error { return errNoKernel }

func (noKernel) Threads(string, string) ([]pin.Thread, error) { return nil, errNoKernel }

func (noKernel) SetThread(pin.Thread) error { return errNoKernel }

func (noKernel) RestartIrqbalance() error { return nil }
