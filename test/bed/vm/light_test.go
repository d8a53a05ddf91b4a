package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestPickModules(t *testing.T) {
	var text bytes.Buffer
	a := newArchive(&text)
	a.dir("lib", 0o755)
	a.file("lib/one.ko", 0o644, []byte("1"))
	a.file("lib/three.ko", 0o644, []byte("333"))
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "modules.cpio")
	if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := pickModules(name, []string{"three"})
	if err != nil || len(found) != 1 || string(found["three"]) != "333" {
		t.Errorf("found %q, %v", found, err)
	}
	if _, err := pickModules(name, []string{"two"}); err == nil {
		t.Error("a missing module is found")
	}
	for cut := 1; cut < text.Len(); cut += 7 {
		if err := os.WriteFile(name, text.Bytes()[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		// A truncated archive must not cause a panic.
		_, _ = pickModules(name, []string{"three"})
	}
}
