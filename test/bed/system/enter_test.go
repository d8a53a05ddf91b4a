package system

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A system whose maker is killed leaves no file, also if it was not made yet.
func TestEnterKilled(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "archive")
	if err := syscall.Mkfifo(archive, 0o600); err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(dir, "roots")
	if err := os.Mkdir(roots, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := Command(archive, "../../..", "root", "true")
	cmd.Env = append(os.Environ(), "TMPDIR="+roots)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said // until the last process has closed it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(archive, os.O_WRONLY, 0) // tar reads
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if made, err := os.ReadDir(roots); err != nil || len(made) != 1 {
		t.Fatalf("%v: roots %v, want one", err, made)
	}
	stdin.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("it has ended as if the command had run")
	}
	if left, err := os.ReadDir(roots); err != nil || len(left) > 0 {
		t.Errorf("%v: %v is left: %s", err, left, said.String())
	}
}
