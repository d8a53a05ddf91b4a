package vm

import (
	"strings"
	"testing"
)

// A machine without any of the programs learns of all of them at once.
func TestNeeds(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := machines["amd64"].needs(Options{})
	if err == nil {
		t.Fatal("nothing is missing")
	}
	for _, want := range []string{"qemu-system-x86_64, ", "xz, ", "apt-get are missing: apt-get install qemu-system-x86 ", " xz-utils "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
