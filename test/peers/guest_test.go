package peers

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/vm"
)

// guestKernel is the kernel of the guest, of the same release as the selftests.
const guestKernel = "6.12"

// guestPackages are Debian packages that scripts need besides those of every guest, with
// the libraries that they depend on. busybox's programs call its own ip in place of
// iproute2's, and know fewer options.
var guestPackages = []string{
	"bash", "libtinfo6", "coreutils", "libacl1", "libattr1", "libgmp10", "libselinux1", "libpcre2-8-0", "findutils", "grep", "sed", "uuid-runtime",
	"iputils-arping", "libnet1", "libpcap0.8", "libdbus-1-3", "libsystemd0", "libgcrypt20", "libgpg-error0", "liblz4-1", "liblzma5", "libzstd1", "libcap2",
	"bc", "libreadline8", "ebtables", "ipvsadm", "libnl-3-200", "libnl-genl-3-200", "libpopt0", "iperf3", "libiperf0", "libsctp1", "libssl3", "jq", "libjq1", "libonig5",
	"ndisc6", "netsniff-ng", "libcli1.10", "libcrypt1", "smcroute", "tcpdump", "traceroute",
}

// runGuest runs scripts in a guest, one after the other.
func runGuest(t *testing.T, scripts []string, logs string, with bool) (results, counts) {
	t.Helper()
	dir, err := fetchSelftests()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := vm.Unpacked(t.Context(), runtime.GOARCH, "selftests", guestPackages...)
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
	add("/net", dir)
	for _, folder := range []string{"bin", "sbin", "lib"} {
		for _, from := range []string{folder, "usr/" + folder} {
			if _, err := os.Stat(filepath.Join(tools, from)); err == nil {
				add("/usr/"+folder, filepath.Join(tools, from))
			}
		}
	}
	for name, of := range map[string]string{"bin/traceroute": ".db", "bin/traceroute6": ".db", "sbin/ebtables": "-legacy"} { // Debian's alternatives
		add("/usr/"+name, filepath.Join(tools, "usr", name+of))
	}
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
	command := "mkdir -p /peers/counts /run/netns\nexport PEERS=/peers KSFT_MACHINE_SLOW=yes PEERS_HOOK=" + hook + "\n" + up + "\n" +
		"for script in " + strings.Join(scripts, " ") + "; do cd \"/net/$(dirname $script)\"; echo \"=== ${script##*/}\"; timeout 1200 bash \"./${script##*/}\" 2>&1; echo \"=== status $?\"; done\n" +
		down + "\necho '=== counts'; cat /peers/counts/* 2>/dev/null\nexit 0\n"
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	console, err := os.Create(filepath.Join(logs, "console.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	r, err := vm.Run(t.Context(), vm.Options{
		Kernel: guestKernel, CPUs: 2, Memory: 2048, Icount: true, Files: files, Command: command, Timeout: 2 * time.Hour, Console: console,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Complaints != "" {
		t.Logf("warnings of the kernel: %s", r.Complaints)
	}
	return parseGuest(t, r.Output)
}

// guestScript is the output of a script in a guest.
var guestScript = regexp.MustCompile(`(?s)=== (\S+\.sh)\r?\n(.*?)=== status (\d+)`)

// parseGuest reads the output of all scripts, and what SCON counted.
func parseGuest(t *testing.T, out string) (results, counts) {
	t.Helper()
	scripts, statuses, _ := strings.Cut(out, "=== counts")
	r := make(results)
	for _, m := range guestScript.FindAllStringSubmatch(scripts, -1) {
		status, _ := strconv.Atoi(m[3]) // digits
		parseSelftest(m[1], m[2], status, r)
	}
	return r, sumStatuses(t, statuses)
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
