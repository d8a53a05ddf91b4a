package documents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A profile, of which there is one at a time, and the doctor do not wait for each other.
func TestDocumentsApart(t *testing.T) {
	bin := t.TempDir()
	begun, end := filepath.Join(bin, "begun"), filepath.Join(bin, "end")
	for _, pipe := range []string{begun, end} {
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := "#!/bin/sh\nfor a; do case $a in --svg=*) echo '<svg/>' >\"${a#--svg=}\";; esac; done\necho >" + begun + "\nread line <" + end + "\n"
	if err := os.WriteFile(filepath.Join(bin, "scon-lab"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	d := documents{examined: time.Now()}
	d.doctor.Kernel = "6.18"
	profile := make(chan error, 1)
	go func() {
		_, err := d.profile(t.Context(), "veth0")
		profile <- err
	}()
	if _, err := os.ReadFile(begun); err != nil {
		t.Fatal(err)
	}
	examined := make(chan string, 1)
	go func() {
		doctor, _ := d.examine()
		examined <- doctor.Kernel
	}()
	select {
	case kernel := <-examined:
		if kernel != "6.18" {
			t.Errorf("the doctor has examined %q", kernel)
		}
	case <-time.After(10 * time.Second):
		t.Error("the doctor waits for the profile")
	}
	if _, err := d.profile(t.Context(), "veth1"); err == nil || !strings.Contains(err.Error(), "another one") {
		t.Errorf("a second profile: %v", err)
	}
	if err := os.WriteFile(end, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-profile; err != nil {
		t.Error(err)
	}
}
