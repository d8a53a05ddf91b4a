package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/test/bed/check"
	"github.com/scon-project/scon/test/bed/nstest"
)

func TestMain(m *testing.M) { check.Main(m) }

// fixture is a machine with the given files.
func fixture(t *testing.T, files map[string]string) host {
	t.Helper()
	h := host{root: t.TempDir(), release: "6.1.0-18-amd64"}
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestReport(t *testing.T) {
	const (
		jit    = "/proc/sys/net/core/bpf_jit_enable"
		mounts = "/proc/thread-self/mounts"
		types  = "/proc/filesystems"
	)
	files := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	for _, c := range []struct {
		name  string
		check func(host) result
		files map[string]string
		level string
		found string
	}{
		{"JIT on", checkJIT, files(jit, "1\n"), ok, "net.core.bpf_jit_enable = 1"},
		{"JIT off", checkJIT, files(jit, "0\n"), warn, "net.core.bpf_jit_enable = 0"},
		{"JIT of another kernel", func(host) result { return compiled(fmt.Errorf("JIT disabled: %w", ebpf.ErrNotSupported)) }, nil, warn, "off: a program was not compiled"},
		{"JIT not readable", func(host) result { return compiled(errors.New("denied")) }, nil, note, "denied"},
		{"BTF", checkBTF, files("/sys/kernel/btf/vmlinux", ""), ok, "/sys/kernel/btf/vmlinux"},
		{"no BTF", checkBTF, nil, note, "no /sys/kernel/btf/vmlinux"},
		{"forwards", checkForward, files("/proc/sys/net/ipv4/ip_forward", "1\n"), ok, "net.ipv4.ip_forward = 1"},
		{"forwards IPv6", checkForward6, files("/proc/sys/net/ipv6/conf/all/forwarding", "1\n"), ok, "net.ipv6.conf.all.forwarding = 1"},
		{"does not forward IPv6", checkForward6, files("/proc/sys/net/ipv6/conf/all/forwarding", "0\n"), note, "net.ipv6.conf.all.forwarding = 0"},
		{"no IPv6", checkForward6, nil, note, "no net.ipv6.conf.all.forwarding"},
		{"does not forward", checkForward, files("/proc/sys/net/ipv4/ip_forward", "0\n"), warn, "net.ipv4.ip_forward = 0"},
		{"bpffs", checkBPFFS, files(mounts, "none /sys/fs/bpf bpf rw 0 0\n"), ok, "mounted at /sys/fs/bpf"},
		{
			"bpffs elsewhere", checkBPFFS,
			files(mounts, "none /mnt bpf rw 0 0\n", types, "nodev\tproc\nnodev\tbpf\n\text4\n", "/sys/fs/bpf/.", ""),
			ok, "not mounted; 'scon up' mounts it at /sys/fs/bpf",
		},
		{
			"bpffs not built", checkBPFFS,
			files(mounts, "", types, "nodev\tproc\n\text4\n", "/sys/fs/bpf/.", ""),
			fail, "the kernel has no bpffs",
		},
		{"no /sys", checkBPFFS, files(mounts, "", types, "nodev\tbpf\n"), fail, "no /sys/fs/bpf"},
		{"Docker and Podman", checkRuntimes, files("/run/podman/podman.sock", "", "/run/docker.sock", ""), ok, "Docker, Podman"},
		{"no runtime", checkRuntimes, nil, note, "no socket of a runtime"},
		{"br_netfilter", checkBridgeNetfilter, files("/proc/sys/net/bridge/bridge-nf-call-iptables", "1\n"), ok, "net.bridge.bridge-nf-call-iptables = 1"},
		{"no br_netfilter", checkBridgeNetfilter, nil, ok, "not loaded"},
		{"accounting", checkAccounting, files("/proc/sys/net/netfilter/nf_conntrack_acct", "1\n"), note, "on: it counts regular packets only"},
		{"no accounting", checkAccounting, files("/proc/sys/net/netfilter/nf_conntrack_acct", "0\n"), ok, "off"},
		{
			"legacy tables", checkLegacy,
			files("/proc/thread-self/net/ip_tables_names", "nat\nfilter\n", "/proc/thread-self/net/ip6_tables_names", "raw\n"),
			note, "ip nat, ip filter, ip6 raw: a change is seen by xtables' lock file, or when the lease ends, within 1 s",
		},
		{"no legacy tables", checkLegacy, files("/proc/thread-self/net/ip_tables_names", ""), ok, "no tables"},
		{"no legacy at all", checkLegacy, nil, ok, "no tables"},
		{"kernel", checkKernel, nil, ok, "6.1.0-18-amd64"},
		{"root", checkRoot, nil, ok, "root"},
	} {
		got := c.check(fixture(t, c.files))
		if got.level != c.level || got.found != c.found {
			t.Errorf("%s: got %s %q, want %s %q", c.name, got.level, got.found, c.level, c.found)
		}
		if (got.level == warn || got.level == fail) && got.remedy == "" {
			t.Errorf("%s: no remedy for %q", c.name, got.found)
		}
	}
}

// The sysctl of the JIT is visible in the initial network namespace only: in
// another one the JIT is not taken to be off.
func TestJITInNetworkNamespace(t *testing.T) {
	nstest.Do(t, nstest.New(t), func() {
		h := thisHost()
		if _, err := h.sysctl("net.core.bpf_jit_enable"); err == nil {
			t.Skip("this kernel shows the sysctl in every network namespace")
		}
		if got := checkJIT(h); got.level != ok || got.found != "on: a program was compiled" {
			t.Errorf("got %+v", got)
		}
	})
}

func TestOldKernelFails(t *testing.T) {
	if got := checkKernel(host{release: "5.10.0"}); got.level != fail || got.remedy != "run Linux 5.15 or newer" {
		t.Errorf("got %+v", got)
	}
}

// TestExamine checks the machine that the test runs on, which has all that
// the other tests need.
func TestExamine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("need root to check BPF: run 'sudo make test'")
	}
	d := Examine(Options{})
	if len(d.Capabilities) != len(capabilities) || d.Kernel == "" {
		t.Errorf("got %d capabilities of kernel %q", len(d.Capabilities), d.Kernel)
	}
	for _, c := range d.Capabilities {
		if c.Level == fail || c.Found == "" || c.For == "" || c.Found == "not checked: needs root" {
			t.Errorf("%+v", c)
		}
	}
}

// TestExamineWithoutRoot holds that nothing is tried, and that this is said.
func TestExamineWithoutRoot(t *testing.T) {
	h := fixture(t, nil)
	h.euid = 1000
	for i, c := range examine(h).Capabilities {
		if c.Name == "" || c.For == "" {
			t.Errorf("without a name or a purpose: %+v", c)
		}
		if capabilities[i].needsRoot && (c.Level != note || c.Found != "not checked: needs root") {
			t.Errorf("%+v", c)
		}
	}
}

func TestNearestHZ(t *testing.T) {
	for rate, want := range map[float64]int{0: 100, 99: 100, 249.2: 250, 255: 250, 298: 300, 1010: 1000, 700: 1000} {
		if got := nearestHZ(rate); got != want {
			t.Errorf("%v: got %d, want %d", rate, got, want)
		}
	}
}
