package pin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixtures are machines: trees of /proc and /sys.
var fixtures = []string{"rpi4", "desktop", "twosocket", "epyc", "vm"}

// fixture unpacks a machine, with its namespaces in /netns. A file named
// "A -> B" is a symbolic link.
func fixture(t testing.TB, name string) *Host {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	// Hundreds of small files, and a sync for every change: in memory.
	root, err := os.MkdirTemp("/dev/shm", "scon-pin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for _, f := range archive.Files {
		path, target, isLink := strings.Cut(f.Name, " -> ")
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if isLink {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h := &Host{Root: root, State: filepath.Join(root, "state"), Kernel: &fakeKernel{root: root}}
	namespaces, _ := filepath.Glob(root + "/netns/*")
	for _, ns := range namespaces {
		h.Namespaces = append(h.Namespaces, Namespace{Path: filepath.Base(ns)})
	}
	return h
}

func capture(t testing.TB, h *Host) Snapshot {
	t.Helper()
	s, err := h.Capture()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fakeKernel has no veths; a device has a thread while its file says so.
type fakeKernel struct {
	root     string
	threads  map[string]Thread
	restarts int
	fail     error // of the restart
}

func (*fakeKernel) Veths(string, []Namespace) (map[string]Veth, error) { return nil, nil }

// Features of every device are those of one that may merge datagrams.
func (*fakeKernel) Features(string, string) (map[string]bool, error) {
	return map[string]bool{"rx-udp-gro-forwarding": false}, nil
}

func (*fakeKernel) SetFeatures(string, string, map[string]bool) error { return nil }

func (k *fakeKernel) Threads(_, device string) ([]Thread, error) {
	threaded, err := readFile(filepath.Join(k.root, "/sys/class/net", device, "threaded"))
	if err != nil || threaded == "0" {
		delete(k.threads, device)
		return nil, nil
	}
	if t, ok := k.threads[device]; ok {
		return []Thread{t}, nil
	}
	return []Thread{{Name: device, CPUs: CPUs{0, 1}}}, nil
}

func (k *fakeKernel) SetThread(t Thread) error {
	if k.threads == nil {
		k.threads = make(map[string]Thread)
	}
	k.threads[t.Name] = t
	return nil
}

func (k *fakeKernel) RestartIrqbalance() error {
	k.restarts++
	return k.fail
}
