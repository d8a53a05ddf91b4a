package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root (sudo make test)")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestPath(t *testing.T) {
	for in, want := range map[string]string{
		"":               "/proc/thread-self/ns/net",
		"blue":           "/run/netns/blue",
		"/proc/1/ns/net": "/proc/1/ns/net",
		"./blue":         "./blue",
	} {
		if got := Path(in); got != want {
			t.Errorf("Path(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, in, want string }{
		{"missing", "no-such", `namespace "no-such": no such namespace; "ip netns list" shows them`},
		{"regular file", file, "is not a network namespace"},
		{"other kind", "/proc/self/ns/mnt", "is not a network namespace"},
		{"directory", "/proc/self", "is not a network namespace"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(tc.in)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Open(%q) = %v, want %q in it", tc.in, err, tc.want)
			}
		})
	}
	if _, err := Open("no-such"); !errors.Is(err, ErrNotExist) {
		t.Errorf("error %v does not wrap ErrNotExist", err)
	}
}

// create makes a namespace that is gone at the end of the test.
func create(t *testing.T, more ...string) string {
	t.Helper()
	name := fmt.Sprintf("scon-t%d-%s%s", os.Getpid(), strings.ToLower(t.Name()), strings.Join(more, ""))
	if err := Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Delete(name); err != nil && !errors.Is(err, ErrNotExist) {
			t.Error(err)
		}
	})
	return name
}

// inode is the inode of a namespace that is there.
func inode(t *testing.T, nameOrPath string) uint64 {
	t.Helper()
	n, err := Inode(nameOrPath)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCreateIsAnotherNamespace(t *testing.T) {
	name := create(t)
	if inode(t, name) == inode(t, "") {
		t.Errorf("namespace %q is the caller's own", name)
	}
	if err := Create(name); !errors.Is(err, ErrExist) {
		t.Errorf("second Create: %v, want ErrExist", err)
	}
}

func TestAttach(t *testing.T) {
	name := create(t)
	second := name + "-2"
	if err := Attach(second, Path(name)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Delete(second); err != nil {
			t.Error(err)
		}
	})
	if inode(t, second) != inode(t, name) {
		t.Errorf("%q is another namespace than %q", second, name)
	}
	if err := Attach(second, Path(name)); !errors.Is(err, ErrExist) {
		t.Errorf("second Attach: %v, want ErrExist", err)
	}
	if err := Attach(name+"-3", "/no/such"); err == nil {
		t.Error("a file that is not there has a name")
	}
}

func TestDelete(t *testing.T) {
	name := create(t)
	if err := Delete(name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(Path(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat after Delete: %v", err)
	}
	if err := Delete(name); !errors.Is(err, ErrNotExist) {
		t.Errorf("second Delete: %v, want ErrNotExist", err)
	}
}

func TestDeleteWithoutMount(t *testing.T) {
	if err := shareRunDir(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("scon-t%d-plain", os.Getpid())
	if err := os.WriteFile(Path(name), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := Delete(name); err != nil {
		t.Errorf("Delete of a left-over file: %v", err)
	}
}

func TestNamesThatAreNotBare(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../x"} {
		if err := Create(name); err == nil {
			t.Errorf("Create(%q) went well", name)
		}
		if err := Delete(name); err == nil {
			t.Errorf("Delete(%q) went well", name)
		}
	}
}

func TestIPKnowsTheNamespace(t *testing.T) {
	name := create(t)
	out, err := exec.Command("ip", "-n", name, "-br", "link", "show", "lo").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "lo") {
		t.Errorf("ip -n %s: %v: %s", name, err, out)
	}
}

func TestDo(t *testing.T) {
	name := create(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, want := inode(t, ""), inode(t, name)

	wrong := errors.New("what fn returned")
	err := Do(name, func() error {
		if got := inode(t, ""); got != want {
			t.Errorf("inside Do the namespace is %d, want %d", got, want)
		}
		if ifs, err := net.Interfaces(); err != nil || len(ifs) != 1 {
			t.Errorf("inside Do there are interfaces %v, %v; want lo alone", ifs, err)
		}
		return Do("/proc/self/ns/net", func() error {
			return wrong
		})
	})
	if !errors.Is(err, wrong) {
		t.Errorf("Do = %v, want %v", err, wrong)
	}
	if got := inode(t, ""); got != home {
		t.Errorf("after Do the namespace is %d, want %d", got, home)
	}
}

func TestDoKeepsBPFFS(t *testing.T) {
	name := create(t)
	before, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	err = Do(name, func() error {
		inside, err := os.ReadFile("/proc/thread-self/mountinfo")
		if string(inside) != string(before) {
			t.Errorf("mounts differ inside Do:\n%s\nbefore:\n%s", inside, before)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDoReturnsAfterPanic(t *testing.T) {
	name := create(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := inode(t, "")
	func() {
		defer func() { recover() }()
		_ = Do(name, func() error { panic("in fn") })
	}()
	if got := inode(t, ""); got != home {
		t.Errorf("after a panic in fn the namespace is %d, want %d", got, home)
	}
}

func TestDoInMissingNamespace(t *testing.T) {
	called := false
	err := Do("no-such", func() error { called = true; return nil })
	if !errors.Is(err, ErrNotExist) || called {
		t.Errorf("Do = %v, fn called: %v", err, called)
	}
}

func TestEnter(t *testing.T) {
	name := create(t)
	want := inode(t, name)
	got := make(chan uint64)
	go func() {
		defer close(got)
		runtime.LockOSThread() // never unlocked: the thread ends here
		if err := Enter(name); err != nil {
			t.Error(err)
			return
		}
		if n, err := Inode(""); err == nil {
			got <- n
		}
	}()
	if n := <-got; n != want {
		t.Errorf("after Enter the namespace is %d, want %d", n, want)
	}
}

func TestReplace(t *testing.T) {
	if !HasBeneath() {
		t.Skip("the kernel has no MOVE_MOUNT_BENEATH (6.5)")
	}
	fresh, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	old, want := create(t, "old"), inode(t, FdPath(fresh))
	if want == inode(t, old) || want == inode(t, "") {
		t.Fatal("New makes no new namespace")
	}
	if err := Replace(Path(old), fresh); err != nil {
		t.Fatal(err)
	}
	if got := inode(t, old); got != want {
		t.Errorf("%s is namespace %d, want %d", old, got, want)
	}
	if err := Delete(old); err != nil {
		t.Fatal(err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), old) {
		t.Errorf("a mount is left: %v", err)
	}
}
