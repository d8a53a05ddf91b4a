package figures

import (
	"bytes"
	"encoding/xml"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/nstest"
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

// checkPlots checks that plots of these names are in a folder, as PNG and SVG.
func checkPlots(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		f, err := os.Open(filepath.Join(dir, name+".png"))
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := png.Decode(f); err != nil {
			t.Errorf("%s: %v", f.Name(), err)
		}
		f.Close()
		var root struct{ XMLName xml.Name }
		content, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err == nil {
			err = xml.Unmarshal(content, &root)
		}
		if err != nil || root.XMLName.Local != "svg" {
			t.Errorf("%s.svg: %v, root %q", name, err, root.XMLName.Local)
		}
	}
}
