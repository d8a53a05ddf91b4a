package pipe_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/test/bed/nstest"
)

// cuda builds scon-pipe-cuda and a mock of libcuda, and returns their directory. These tests
// need no GPU.
var cuda = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "cuda")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for _, build := range [][]string{
		{"make", "-C", "../..", "cuda", "BIN=" + dir, "CUDA=" + filepath.Join(dir, "scon-pipe-cuda")},
		{"cc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/libcuda.c"},
	} {
		if said, err := exec.Command(build[0], build[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the copy helper: %w\n%s", err, said)
		}
	}
	return dir, nil
})

// mock is a helper that uses the mock of libcuda.
type mock struct {
	path string
	dir  string // for the files that its processes write
}

func newMock(t *testing.T, env string) mock {
	t.Helper()
	dir, err := cuda()
	if err != nil {
		t.Fatal(err)
	}
	m := mock{dir: t.TempDir()}
	m.path = filepath.Join(m.dir, "helper")
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%[1]s/pid.$$\nexport LD_LIBRARY_PATH=%[2]s MOCK_COUNT=%[1]s/count.$$ %[3]s\nexec %[2]s/scon-pipe-cuda \"$@\"\n", m.dir, dir, env)
	if err := os.WriteFile(m.path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

// numbers reads the numbers that its processes have written to files of a name.
func (m mock) numbers(name string) (all []int, err error) {
	files, err := filepath.Glob(filepath.Join(m.dir, name+".*"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// kill kills its processes.
func (m mock) kill() error {
	pids, err := m.numbers("pid")
	for _, pid := range pids {
		err = errors.Join(err, unix.Kill(pid, unix.SIGKILL))
	}
	return err
}

const mockName = "mock of libcuda, for tests only"

// awaitDevice waits until the broker reports the copy device, "" for none. A helper starts
// with the first connection.
func awaitDevice(t *testing.T, b *pipe.Broker, name string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); b.Status().CopyDevice != name; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the device is %q, want %q", b.Status().CopyDevice, name)
		}
	}
}

// stress runs connections with all operations, and checks every byte.
func stress(t *testing.T, socket string) {
	t.Helper()
	runTopic(t, nstest.New(t), socket, "stress", "ENGINE=copier", "CONNS=4", "SECONDS=1", "SEED="+os.Getenv("SCON_SEED"))
}

// deviceTopics are topics of libsconpipe/test that copy much, or end during copies.
var deviceTopics = []string{"partial", "loan", "fullring", "halfclose", "peerdeath"}

// A device copies, and no byte is published before its copy is complete. Memory that the
// driver does not register is copied by the CPU.
func TestCopyDevice(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env    string
		copies bool
	}{
		"registered":     {"", true},
		"not registered": {"MOCK_REFUSE=1", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMock(t, test.env)
			t.Cleanup(func() { // the helpers have ended
				counts, err := m.numbers("count")
				if err != nil {
					t.Fatal(err)
				}
				sum := 0
				for _, n := range counts {
					sum += n
				}
				if (sum > 0) != test.copies {
					t.Errorf("the device copied %d bytes", sum)
				}
			})
			b, socket := serve(t, func(o *pipe.Options) { o.Copier = copier.New(m.path) })
			runTopic(t, nstest.New(t), socket, "connect", "ENGINE=copier")
			awaitDevice(t, b, mockName)
			for _, topic := range deviceTopics {
				runTopic(t, nstest.New(t), socket, topic, "ENGINE=copier")
			}
			stress(t, socket)
		})
	}
}

// A real device copies, where there is one: every byte arrives.
func TestRealCopyDevice(t *testing.T) {
	t.Parallel()
	dir, err := cuda()
	if err != nil {
		t.Fatal(err)
	}
	helper := filepath.Join(dir, "scon-pipe-cuda")
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		t.Skipf("missing: a GPU: %v", err)
	}
	name, err := copier.ProbeDevice(helper)
	if err != nil {
		t.Fatal(err)
	}
	b, socket := serve(t, func(o *pipe.Options) { o.Copier = copier.New(helper) })
	runTopic(t, nstest.New(t), socket, "connect", "ENGINE=copier")
	awaitDevice(t, b, name)
	for _, topic := range deviceTopics {
		runTopic(t, nstest.New(t), socket, topic, "ENGINE=copier")
	}
	stress(t, socket)
	if got := b.Status().CopyDevice; got != name {
		t.Errorf("the device is %q at the end, want %q", got, name)
	}
}

// When the helper dies, the CPU copies, and no byte is lost. Another helper copies later.
func TestCopyDeviceDies(t *testing.T) {
	t.Parallel()
	m := newMock(t, "")
	t.Cleanup(func() { // the helpers have ended; those that were killed have not counted
		counts, err := m.numbers("count")
		if err != nil || len(counts) == 0 || slices.Max(counts) == 0 {
			t.Errorf("the second helper copied nothing: %v, %v", counts, err)
		}
	})
	b, socket := serve(t, func(o *pipe.Options) { o.Copier = copier.New(m.path) })
	runTopic(t, nstest.New(t), socket, "connect", "ENGINE=copier")
	awaitDevice(t, b, mockName)
	killed := make(chan error, 1)
	var over atomic.Bool
	go func() {
		for b.Status().SentBytes < 1<<20 && !over.Load() { // kill it during copies
			time.Sleep(time.Millisecond)
		}
		killed <- m.kill()
	}()
	stress(t, socket)
	over.Store(true)
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	awaitDevice(t, b, mockName)
	stress(t, socket)
}

// Without a working helper, the CPU copies.
func TestNoCopyDevice(t *testing.T) {
	t.Parallel()
	for name, helper := range map[string]string{"none": "/nonexistent", "another program": "/bin/false"} {
		t.Run(name, func(t *testing.T) {
			b, socket := serve(t, func(o *pipe.Options) { o.Copier = copier.New(helper) })
			runTopic(t, nstest.New(t), socket, "fullring", "ENGINE=copier")
			if name := b.Status().CopyDevice; name != "" {
				t.Errorf("the device is %q", name)
			}
		})
	}
}

// ProbeDevice returns the name that a helper prints, or an error.
func TestProbeCopyDevice(t *testing.T) {
	t.Parallel()
	name, err := copier.ProbeDevice(newMock(t, "").path)
	if err != nil || name != mockName {
		t.Errorf("%q, %v", name, err)
	}
	if _, err := copier.ProbeDevice("/bin/false"); err == nil {
		t.Error("no error from a program that fails")
	}
}
