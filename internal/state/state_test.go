package state_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/check"
)

func TestReadWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	want := state.State{PID: 7, Netns: "device", Socket: "/run/scon/scon.sock", Version: "v0", Config: config.Default()}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := state.Read(dir)
	if err != nil || check.Diff(want, got) != "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "scon")
	unlock, err := state.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := (state.State{PID: 7, Socket: "/x"}).Write(dir); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "mine")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := state.Express.Remove(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("left: %v, %v; want what is not SCON's", left, err)
	}
	if _, err := state.Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read after Remove: %v", err)
	}
	os.Remove(foreign)
	if err := errors.Join(state.Express.Remove(dir), state.Express.Remove(dir)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the empty directory stays: %v", err)
	}
}

func TestReadCorrupt(t *testing.T) {
	for _, content := range []string{"", "{", "[]", "{}", `{"pid": 7, "socket": "scon.sock"}`, `{"pid": -1, "socket": "/x"}`, "\x00\x00"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := state.Read(dir); !errors.Is(err, state.ErrCorrupt) {
			t.Errorf("%q: %+v, %v", content, s, err)
		}
		if err := (state.State{PID: 7, Socket: "/x"}).Write(dir); err != nil {
			t.Errorf("%q is not overwritten: %v", content, err)
		}
	}
}

func TestLockIsHeldOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "scon")
	unlock, err := state.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := state.Lock(dir); !errors.Is(err, state.ErrLocked) {
		t.Errorf("held twice: %v", err)
	}
	unlock()
	unlock, err = state.Lock(dir)
	if err != nil {
		t.Errorf("not free after unlock: %v", err)
	}
	unlock()
}

// A directory with files of another program's is refused, and they stay; one with a state file
// that was cut short is not.
func TestLockForeign(t *testing.T) {
	for _, c := range []struct {
		name, content string
		foreign       bool
	}{
		{"daemon.json", "{}", true}, {"daemon.json", `{"log-driver": "local"}`, true}, {"lock", "1234\n", true},
		{"daemon.json", `{"pid": 7, "soc`, false}, {"daemon.json", `{"pid": 7, "socket": "x"}`, false}, {"daemon.json", "", false},
		{"lock", "", false}, {"scon.log", "log", false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		unlock, err := state.Lock(dir)
		if err == nil {
			unlock()
		}
		if (err != nil) != c.foreign || c.foreign && !strings.Contains(err.Error(), path+" is another program's") {
			t.Errorf("%s with %q: %v", c.name, c.content, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != c.content {
			t.Errorf("%s with %q: now %q, %v", c.name, c.content, got, err)
		}
	}
}

// A daemon that was just killed is not treated as running.
func TestLockOfDying(t *testing.T) {
	dir := t.TempDir()
	unlock, err := state.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := state.Lock(dir); !errors.Is(err, state.ErrLocked) {
		t.Errorf("a second lock: %v", err)
	}
	time.AfterFunc(state.Dying/5, unlock)
	again, err := state.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// The socket's group can reach it also with a strict umask.
func TestMakeUnderUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := filepath.Join(t.TempDir(), "scon")
	unlock, err := state.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := state.Make(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("what was there got mode %v, %v", info.Mode(), err)
	}
}

// FuzzRead checks that accepted states are usable, and that all others are ErrCorrupt.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"pid": 7, "netns": "device", "socket": "/run/scon/scon.sock", "config": {"Bridges": ["docker0"]}}`))
	f.Add([]byte(`{"pid": -1, "socket": "scon.sock"}`))
	f.Add([]byte(`{"pid": 1e9, "socket": "/x"} {`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, "daemon.json"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := state.Read(dir)
		switch {
		case err == nil && (s.PID < 1 || !filepath.IsAbs(s.Socket)):
			t.Errorf("%q was taken: %+v", content, s)
		case err != nil && !errors.Is(err, state.ErrCorrupt):
			t.Errorf("%q: %v", content, err)
		}
	})
}
