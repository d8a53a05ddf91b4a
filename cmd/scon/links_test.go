package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// largest is the size limit of the program, built as "make build" builds it, by the
// compiler of ofGo. That of Go 1.27 makes it 1.6 % larger. 2 MB more are TLS: http.Server and
// http.Client link it, package httpconn does not.
const (
	largest = 14_000_000
	ofGo    = "go1.26"
)

// scon links no measurement code: that is scon-lab's.
func TestLinksNoLaboratory(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("list the packages that scon links: %v", err)
	}
	for _, pkg := range strings.Fields(string(out)) {
		for _, prefix := range []string{
			"github.com/scon-project/scon/test", "github.com/scon-project/scon/lab",
			"gonum.org/", "golang.org/x/image/", "golang.org/x/text/", "github.com/santhosh-tekuri/jsonschema/", "github.com/HdrHistogram/",
			"fortio.org/", "github.com/eclipse/paho",
		} {
			if strings.HasPrefix(pkg, prefix) {
				t.Errorf("scon links %s", pkg)
			}
		}
	}
}

func TestSize(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scon")
	cmd := exec.Command("make", "-C", "../..", "scon", "SCON="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", info.Size())
	if !strings.HasPrefix(runtime.Version(), ofGo) {
		t.Skipf("the limit is that of %s: this is %s", ofGo, runtime.Version())
	}
	if info.Size() > largest {
		t.Errorf("scon has %d bytes, %d at most: \"go tool nm -size -sort size\" lists the largest symbols", info.Size(), largest)
	}
}
