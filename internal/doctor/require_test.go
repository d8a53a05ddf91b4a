package doctor

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRequire(t *testing.T) {
	for _, c := range []struct {
		host host
		bpf  error
		want string
	}{
		{host{euid: 0, release: "5.15.0-105-generic"}, nil, ""},
		{host{euid: 0, release: "6.18.44"}, nil, ""},
		{host{euid: 1000, release: "6.1.0"}, nil, "need root to load BPF programs: run it with sudo"},
		{host{euid: 0, release: "5.10.0-28-amd64"}, nil, "kernel 5.10.0-28-amd64 is too old: need 5.15 or newer"},
		{host{euid: 0, release: "4.19.1"}, nil, "kernel 4.19.1 is too old: need 5.15 or newer"},
		{host{euid: 0, release: ""}, nil, `read kernel release "": no MAJOR.MINOR`},
		{
			host{euid: 0, release: "6.1.0"}, fmt.Errorf("probe: %w", unix.EPERM),
			"load a BPF program: probe: operation not permitted: give the container or service CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and check lockdown and seccomp",
		},
		{
			host{euid: 0, release: "6.1.0"}, errors.New("not supported"),
			"load a BPF program: not supported: need a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT",
		},
	} {
		got := ""
		if err := require(c.host, func() error { return c.bpf }); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v, BPF %v\n got %q\nwant %q", c.host, c.bpf, got, c.want)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for release, want := range map[string]version{
		"6.1.0-18-cloud-amd64": {6, 1},
		"5.15.148-v8+":         {5, 15},
		"6.6+":                 {6, 6},
		"6.12":                 {6, 12},
	} {
		if got, err := parseVersion(release); got != want || err != nil {
			t.Errorf("%q: got %v, %v", release, got, err)
		}
	}
	for _, release := range []string{"", "6", "6.", ".1", "linux-6.1"} {
		if got, err := parseVersion(release); err == nil {
			t.Errorf("%q was taken: %v", release, got)
		}
	}
}
