package launch

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestHiddenSysctls(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts: run it as root (sudo make test)")
	}
	h, err := hideSysctls(t.TempDir() + "/sysctl")
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	list := func() (string, error) {
		out, err := exec.Command("ls", "/proc/sys").CombinedOutput()
		return string(out), err
	}
	err = h.do(func() error {
		inside, err := list()
		if strings.Contains(inside, "net") || !strings.Contains(inside, "vm") {
			t.Errorf("the mount namespace has:\n%s", inside)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if outside, err := list(); err != nil || !strings.Contains(outside, "net") {
		t.Errorf("the host has, %v:\n%s", err, outside)
	}
}
