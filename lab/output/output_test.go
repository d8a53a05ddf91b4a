package output

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "result.json")
	for _, content := range []string{"a longer one\n", "short\n"} {
		if err := Check(path); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("the file has %q, want %q; %v", got, content, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the file is %v, want rw-r--r--; %v", info.Mode(), err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the folder has %v, want the file alone; %v", files, err)
	}
}

// Write does not replace a link, a pipe or a device by a file.
func TestWriteToSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	target, link, pipe := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // O_RDWR: the open does not wait for a writer
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe} {
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(path); err != nil {
			t.Error(err)
		}
		if err := Write(path, []byte("new")); err != nil {
			t.Error(err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s is another file: %v, %v", path, after, err)
		}
	}
	got := make([]byte, 3)
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != "new" {
		t.Errorf("the pipe has %q, %v", got, err)
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "new" {
		t.Errorf("the link's target has %q, %v", got, err)
	}
}

func TestCheckRefuses(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(dir, "nowhere", "result.json"): "no such file or directory",
		dir:              "is a directory",
		"/proc/new.json": "no such file or directory",
	} {
		for what, err := range map[string]error{"check": Check(path), "write": Write(path, nil)} {
			if err == nil || err.Error() != "write "+path+": "+want {
				t.Errorf("%s %s: error %v, want %q", what, path, err, want)
			}
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("the folder has %v, want nothing; %v", files, err)
	}
}
