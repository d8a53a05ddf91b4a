package pin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/internal/host/netns"
)

// DefaultState is the directory of the previous values.
const DefaultState = "/var/lib/scon"

// Host is the machine to examine and change.
type Host struct {
	// Root is where /proc, /sys, /etc and /run are.
	Root string
	// State is the directory of the previous values.
	State string
	// Namespaces to examine besides the calling thread's.
	Namespaces []Namespace
	// Kernel does what no file in /proc or /sys offers.
	Kernel Kernel
	// OnlyNetns excludes machine-wide settings: interrupts, governors, irqbalance.
	OnlyNetns bool

	// fault is called before each step; an error that it returns ends the work.
	fault func(step string) error
}

// Namespace is a network namespace.
type Namespace struct {
	Path string // or a name that ip(8) knows
	PID  int    // of a process in it, 0 if none is known
}

// Kernel gives access to what has no file in /proc or /sys.
type Kernel interface {
	// Veths are the veth devices of a namespace.
	Veths(netns string, others []Namespace) (map[string]Veth, error)
	// Features of a device, by the names that the kernel gives them.
	Features(netns, device string) (map[string]bool, error)
	SetFeatures(netns, device string, features map[string]bool) error
	// Threads are those that poll a device, in the order of its queues.
	Threads(netns, device string) ([]Thread, error)
	SetThread(Thread) error
	// RestartIrqbalance lets it read its settings.
	RestartIrqbalance() error
}

// ThisHost is this machine, with the network namespaces given.
func ThisHost(namespaces []Namespace) *Host {
	return &Host{Root: "/", State: DefaultState, Namespaces: namespaces, Kernel: linux{}}
}

// tree is an open sysfs.
type tree struct {
	dir  string
	file *os.File
}

func (t tree) close() {
	if t.file != nil {
		t.file.Close()
	}
}

// sysfs opens the sysfs of a namespace, "" for this thread's. A sysfs shows the devices
// of the namespace that it was mounted in, so a detached one is mounted.
func (h *Host) sysfs(namespace string) (tree, error) {
	if h.Root != "/" { // a fixture
		if namespace == "" {
			return tree{dir: h.path("/sys")}, nil
		}
		return tree{dir: h.path("/netns/" + filepath.Base(namespace) + "/sys")}, nil
	}
	f, err := netns.MountSysfs(namespace, 0)
	if err != nil {
		return tree{}, err
	}
	return tree{dir: fmt.Sprintf("/proc/self/fd/%d", f.Fd()), file: f}, nil
}

func (h *Host) path(name string) string { return filepath.Join(h.Root, name) }

// read reads a file of one value, without the newline.
func (h *Host) read(name string) (string, error) { return readFile(h.path(name)) }

func readFile(path string) (string, error) {
	content, err := os.ReadFile(path)
	return strings.TrimSpace(string(content)), err
}

// writeFile writes a value into an existing file of the kernel.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
