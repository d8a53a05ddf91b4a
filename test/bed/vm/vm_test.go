package vm_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/vm"
)

// The requested kernel boots; output, exit status and files of the command are
// correct.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "greet")
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho hello $1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel:  "6.1",
		Files:   map[string]string{"/opt/greet": file},
		Command: "/opt/greet you; uname -r; iptables -t nat -S POSTROUTING; nft add table ip mine; nft list tables; echo oops >&2; exit 3",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hello you\n", "\n6.1.", "-P POSTROUTING ACCEPT\n", "table ip mine\n", "oops\n"} {
		if !strings.Contains(r.Output, want) {
			t.Errorf("the output lacks %q:\n%s", want, r.Output)
		}
	}
	if r.ExitCode != 3 {
		t.Errorf("the exit status is %d", r.ExitCode)
	}
	if r.Complaints != "" {
		t.Errorf("warnings of the kernel: %s", r.Complaints)
	}
}

// A command runs under systemd as well.
func TestSystemd(t *testing.T) {
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: "6.12", Systemd: true,
		Command: "systemctl show --property ActiveState basic.target; cat /proc/1/comm; exit 3",
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Output != "ActiveState=active\nsystemd\n" || r.ExitCode != 3 || r.Complaints != "" {
		t.Errorf("got %+v", r)
	}
}

// A guest is killed at the timeout.
func TestTimeout(t *testing.T) {
	_, err := vm.Run(t.Context(), vm.Options{Kernel: "6.1", Command: "sleep 1000", Timeout: time.Second})
	if !errors.Is(err, vm.ErrTimeout) {
		t.Errorf("the error is %v", err)
	}
}

func TestNoSuchKernel(t *testing.T) {
	_, err := vm.Run(t.Context(), vm.Options{Kernel: "2.4"})
	if err == nil || !strings.Contains(err.Error(), "there are 6.1, 6.12, newest") {
		t.Errorf("the error is %v", err)
	}
}
