package programs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The package that an error names has the program.
func TestPackagesHavePrograms(t *testing.T) {
	for _, name := range []string{"scon", "scon-cni", "scon-oci", "scon-lab", "scon-pipe-load", "scon-pipe-chain", "scon-pipe-allreduce"} {
		list, err := os.ReadFile(filepath.Join("../../../packaging/nfpm", packageOf(name)+".install"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains("\n"+string(list), "\nusr/bin/"+name+"\n") {
			t.Errorf("package %s lacks %s", packageOf(name), name)
		}
	}
	if _, err := Find("scon-nothing"); err == nil || err.Error() != `scon-nothing is missing: install the package scon-lab, or "make build"` {
		t.Errorf("a program that is not there: %v", err)
	}
}
