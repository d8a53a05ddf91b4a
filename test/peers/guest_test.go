package peers

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/vm"
)

// guestKernel is the kernel of the guest, of the same release as the selftests. It has what
// this machine's may lack: devices of all kinds, VLANs of bridges, flow tables.
const guestKernel = "6.12"

// guestPackages are Debian packages that suites need besides those of every guest, with
// the libraries that they depend on. busybox's programs call its own ip in place of
// iproute2's, and know fewer options.
var guestPackages = []string{
	"bats", "bash", "libtinfo6", "coreutils", "libacl1", "libattr1", "libgcc-s1", "libgmp10", "libselinux1", "libpcre2-8-0", "findutils", "grep", "sed", "uuid-runtime",
	"iputils-arping", "libnet1", "libpcap0.8", "libdbus-1-3", "libsystemd0", "libgcrypt20", "libgpg-error0", "liblz4-1", "liblzma5", "libzstd1", "libcap2",
	"bc", "libreadline8", "ebtables", "ipvsadm", "libnl-3-200", "libnl-genl-3-200", "libpopt0", "iperf3", "libiperf0", "libsctp1", "libssl3", "jq", "libjq1", "libonig5",
	"ndisc6", "netsniff-ng", "libcli1.10", "libcrypt1", "smcroute", "tcpdump", "traceroute",
	"dbus-daemon", "dbus-session-bus-common", "libapparmor1", "libaudit1", "libcap-ng0", "libexpat1",
}

// inGuest boots a guest with files, which fill adds by their paths there and here, and runs
// commands of a shell with SCON's network namespaces called by $PEERS_HOOK. With SCON, that
// is active in the guest's first one. It returns what they print, and what SCON counted.
func inGuest(t *testing.T, logs string, with bool, fill func(add func(to, from string)), commands string) (string, counts) {
	t.Helper()
	tools, err := vm.Unpacked(t.Context(), runtime.GOARCH, "peers", guestPackages...)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	add := func(to, from string) {
		err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() { // or a link to one
				files[to+strings.TrimPrefix(path, from)] = path
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{"bin", "sbin", "lib", "libexec", "share/dbus-1"} {
		for _, from := range []string{folder, "usr/" + folder} {
			if _, err := os.Stat(filepath.Join(tools, from)); err == nil {
				add("/usr/"+folder, filepath.Join(tools, from))
			}
		}
	}
	for name, of := range map[string]string{"bin/traceroute": ".db", "bin/traceroute6": ".db", "sbin/ebtables": "-legacy"} { // Debian's alternatives
		add("/usr/"+name, filepath.Join(tools, "usr", name+of))
	}
	fill(add)
	add("/peers/scon", "../../bin/scon")
	add("/opt/scon.sh", "scon.sh")
	yaml := filepath.Join(t.TempDir(), "scon.yaml")
	if err := os.WriteFile(yaml, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	add("/peers/scon.yaml", yaml)
	hook, up, down := "", "", ""
	if with {
		hook = "/opt/scon.sh"
		up, down = hook+" up /proc/1/ns/net", hook+" down /proc/1/ns/net"
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	console, err := os.Create(filepath.Join(logs, "console.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: guestKernel, CPUs: 2, Memory: 2048, Icount: true, Files: files, Timeout: 4 * time.Hour, Console: console,
		Command: "mkdir -p /peers/counts /run/netns\nln -s /proc/self/fd /dev/fd\nln -s fd/0 /dev/stdin\nexport PEERS=/peers PEERS_HOOK=" + hook + "\n" + up + "\n" + commands +
			down + "\necho '=== counts'; cat /peers/counts/* 2>/dev/null\nexit 0\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Complaints != "" {
		t.Logf("warnings of the kernel: %s", r.Complaints)
	}
	out, statuses, _ := strings.Cut(r.Output, "=== counts")
	return out, sumStatuses(t, statuses)
}

// findGuest says what is missing for a guest.
func findGuest() error {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return &missing{"qemu-system-x86_64 is not installed: scripts/install-deps.sh kernels"}
	}
	return nil
}

// sumStatuses reads statuses of SCON, one behind the other, and returns what they counted.
func sumStatuses(t *testing.T, statuses string) (sum counts) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(statuses)); d.More(); {
		var s api.Status
		if err := d.Decode(&s); err != nil {
			t.Errorf("SCON's status: %v", err)
			break
		}
		if s.State != api.StateActive {
			t.Errorf("SCON is %s: %s", s.State, s.Why)
		}
		sum.express += s.Totals.ExpressPackets
		sum.regular += s.Totals.RegularPackets
	}
	return sum
}
