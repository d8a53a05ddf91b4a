package pipe_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cilium/ebpf/features"

	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/test/bed/check"
)

// scratch is a directory for programs that the tests build.
var scratch string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if socket := os.Getenv("SCON_TEST_BROKER"); socket != "" {
		return serveBroker(socket)
	}
	if rights := os.Getenv("SCON_TEST_DENIED"); rights != "" {
		return runDenied(rights)
	}
	if os.Getenv("SCON_TEST_ENTER") != "" {
		return enter()
	}
	if socket := os.Getenv("SCON_TEST_HOSTILE"); socket != "" {
		return runHostile(socket)
	}
	var err error
	if scratch, err = os.MkdirTemp("", "scon-pipe-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	code := m.Run()
	if err := check.Leaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// program builds libsconpipe's test program with sanitizers, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	if s := os.Getenv("SCON_SANITIZE"); s != "" {
		return buildProgram(s)
	}
	return buildProgram("address,undefined")
})

// programOfThreads is the same with ThreadSanitizer.
var programOfThreads = sync.OnceValues(func() (string, error) { return buildProgram("thread") })

func buildProgram(sanitize string) (string, error) {
	out := filepath.Join(scratch, sanitize)
	build := exec.Command("make", "-j2", "-C", "../../libsconpipe", "tests", "OUT="+out, "SANITIZE="+sanitize)
	build.Env = append(os.Environ(), "CFLAGS=-O1 -g")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build libsconpipe's tests: %w\n%s", err, said)
	}
	return filepath.Join(out, "pipetest"), nil
}

// engines returns the engines that this machine supports: bpf needs Linux 6.1.
func engines(t testing.TB) []pipe.Engine { return append(ringEngines(t), pipe.Unix) }

// ringEngines returns those that have rings.
func ringEngines(t testing.TB) []pipe.Engine {
	t.Helper()
	if !hasBPF(t) {
		return []pipe.Engine{pipe.Sealed, pipe.Copier}
	}
	return []pipe.Engine{pipe.Sealed, pipe.BPF, pipe.Copier}
}

// ringBytes returns the memory that a new connection is charged with, in bytes.
func ringBytes(e pipe.Engine) int64 {
	if e == pipe.Copier {
		return 256 << 10
	}
	return 128 << 10
}

func needBPF(t testing.TB) {
	t.Helper()
	if !hasBPF(t) {
		t.Skip("missing: Linux 6.1, for the engine bpf")
	}
}

func hasBPF(t testing.TB) bool {
	t.Helper()
	return kernelAtLeast(t, 6, 1)
}

func kernelAtLeast(t testing.TB, major, minor uint32) bool {
	t.Helper()
	version, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	return version >= major<<16|minor<<8
}
