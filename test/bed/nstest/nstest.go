// Package nstest creates network namespaces for a test and removes them when
// it ends.
package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
)

// made counts the namespaces of this process, for unique names.
var made atomic.Uint32

// New creates a namespace with the loopback device up and returns its name,
// which ip(8) knows.
func New(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root (sudo make test)")
	}
	name := fmt.Sprintf("scon-t%d-%d", os.Getpid(), made.Add(1))
	if err := netns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(name); err != nil && !errors.Is(err, netns.ErrNotExist) {
			t.Error(err)
		}
	})
	Run(t, name, "ip link set lo up")
	return name
}

// Do calls fn in a namespace, on the calling goroutine.
func Do(t testing.TB, ns string, fn func()) {
	t.Helper()
	if err := netns.Do(ns, func() error { fn(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// Run runs commands in a namespace, one per line and without quoting, and
// returns the output of the last one. The test ends if one fails.
func Run(t testing.TB, ns, commands string) (out string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		Do(t, ns, func() {
			b, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v: %s", strings.TrimSpace(line), err, b)
			}
			out = string(b)
		})
	}
	return out
}

// HasMachinePIDs reports whether /proc numbers processes as the machine does, and has its
// kernel threads. In a container, which has a PID namespace of its own, it does not.
func HasMachinePIDs(t testing.TB) bool {
	t.Helper()
	const initial = "pid:[4026531836]" // PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	return link == initial
}
