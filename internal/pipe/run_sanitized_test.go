package pipe_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// posixtest runs with sanitizers, by rings of its connections and of its pool.
func TestRunSanitized(t *testing.T) {
	if os.Getenv("SCON_LONG") == "" {
		t.Skip("missing: SCON_LONG; this test takes minutes")
	}
	needBPF(t)
	for _, sanitize := range []string{"address,undefined", "thread"} {
		dir, err := buildRun("run"+sanitize, "SANITIZE="+sanitize, "MUSL=")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range posixCases(t) {
			if name == "scarce" {
				continue // it bounds the address space, of which sanitizers need more
			}
			for _, pooled := range []bool{false, true} {
				t.Run(fmt.Sprint(sanitize, " ", name, " ", pooled), func(t *testing.T) {
					t.Parallel()
					testSanitized(t, dir, name, pooled)
				})
			}
		}
	}
}

func testSanitized(t *testing.T, dir, name string, pooled bool) {
	t.Helper()
	b, socket := serve(t, nil)
	if pooled {
		b.PoolAlways()
	}
	// Some kernels randomize addresses more than sanitizers support.
	cmd := exec.Command("setarch", "--addr-no-randomize", "env", "LD_PRELOAD="+filepath.Join(dir, "libsconrun.so"), filepath.Join(dir, "posixtest"), name)
	cmd.Env = append(os.Environ(), "SCON_PIPE_SOCKET="+socket, "SCON_RUN_AFTER=0",
		"ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := netns.Do(nstest.New(t), cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil || bytes.Contains(out.Bytes(), []byte("Sanitizer")) || bytes.Contains(out.Bytes(), []byte("runtime error")) {
		t.Errorf("%v\n%s", err, out.Bytes())
	}
}
