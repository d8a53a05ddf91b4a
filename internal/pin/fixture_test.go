package pin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/test/bed/check"
	trees "github.com/scon-project/scon/test/bed/fixture"
)

func TestMain(m *testing.M) { check.Main(m) }

// fixtures are machines: trees of /proc and /sys.
var fixtures = []string{"rpi4", "desktop", "twosocket", "epyc", "vm"}

// fixture unpacks a machine, with its namespaces in /netns.
func fixture(t testing.TB, name string) *Host {
	t.Helper()
	// Hundreds of small files, and a sync for every change: in memory.
	root, err := os.MkdirTemp("/dev/shm", "scon-pin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := trees.Unpack("testdata/"+name+".txtar", root); err != nil {
		t.Fatal(err)
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
