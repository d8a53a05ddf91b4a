package figures

import (
	"bytes"
	"os/exec"
	"strconv"
	"testing"

	"github.com/scon-project/scon/internal/host/nstest"
	"github.com/scon-project/scon/internal/lab/bench"
)

// measured runs a benchmark that writes its result to a file, and returns it. Nothing of
// the benchmark may be left.
func measured(t *testing.T, cmd *exec.Cmd, file string) *bench.Result {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	checkNothingIsLeft := nstest.Left(t)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	checkNothingIsLeft("sconbench" + strconv.Itoa(cmd.Process.Pid))
	r, err := bench.ReadResult(file)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
