package peers

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/vm"
)

// guestKernel is the kernel of the guest, of the same release as the selftests.
const guestKernel = "6.12"

// guestSuites are selftests, below tools/testing/selftests/net, that need what this machine's
// kernel may lack: flow tables, bridges' Netfilter, VRFs, dummy devices.
var guestSuites = func() (all []suite) {
	for _, s := range []struct {
		name    string
		scripts []string
	}{
		{"selftests-guest-netfilter", []string{
			"netfilter/conntrack_icmp_related.sh", "netfilter/conntrack_vrf.sh", "netfilter/br_netfilter.sh", "netfilter/nft_nat.sh",
			"netfilter/conntrack_tcp_unreplied.sh", "netfilter/nft_flowtable.sh",
		}},
		{"selftests-guest-net", []string{"rtnetlink.sh", "fib_rule_tests.sh", "fib_nexthops.sh"}},
	} {
		all = append(all, suite{
			name: s.name,
			prepare: func(t *testing.T) (string, error) {
				if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
					return "", &missing{"qemu-system-x86_64 is not installed: scripts/install-deps.sh kernels"}
				}
				_, err := fetchSelftests()
				return linuxVersion + " on " + guestKernel, err
			},
			guest: func(t *testing.T, logs string, with bool) (results, counts) {
				return runGuest(t, s.scripts, logs, with)
			},
		})
	}
	return all
}()

// runGuest runs scripts in a guest, one after the other.
func runGuest(t *testing.T, scripts []string, logs string, with bool) (results, counts) {
	t.Helper()
	dir, err := fetchSelftests()
	if err != nil {
		t.Fatal(err)
	}
	// busybox's programs call its own ip in place of iproute2's.
	tools, err := vm.Unpacked(t.Context(), runtime.GOARCH, "bash", "bash", "libtinfo6", "coreutils", "libacl1", "libattr1", "libgmp10", "libselinux1", "libpcre2-8-0", "findutils", "uuid-runtime")
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
	for _, name := range slices.Concat(scripts, []string{"netfilter/lib.sh", "lib.sh", "net_helper.sh", "nettest"}) {
		add("/net/"+name, filepath.Join(dir, name))
	}
	for _, folder := range []string{"bin", "lib"} {
		for _, from := range []string{folder, "usr/" + folder} {
			if _, err := os.Stat(filepath.Join(tools, from)); err == nil {
				add("/usr/"+folder, filepath.Join(tools, from))
			}
		}
	}
	add("/peers/scon", "../../bin/scon")
	add("/opt/scon.sh", "scon.sh")
	yaml := filepath.Join(t.TempDir(), "scon.yaml")
	if err := os.WriteFile(yaml, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	add("/peers/scon.yaml", yaml)
	hook := ""
	if with {
		hook = "/opt/scon.sh"
	}
	command := "mkdir -p /peers/counts /run/netns; mount -t bpf bpf /sys/fs/bpf\nexport PEERS=/peers KSFT_MACHINE_SLOW=yes PEERS_HOOK=" + hook + "\n" +
		"for script in " + strings.Join(scripts, " ") + "; do cd \"/net/$(dirname $script)\"; echo \"=== ${script##*/}\"; timeout 1200 bash \"${script##*/}\" 2>&1; echo \"=== status $?\"; done\n" +
		"echo '=== counts'; cat /peers/counts/* 2>/dev/null\nexit 0\n"
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
	var sum counts
	for d := json.NewDecoder(strings.NewReader(statuses)); d.More(); {
		var s api.Status
		if err := d.Decode(&s); err != nil {
			t.Errorf("SCON's status in the guest: %v", err)
			break
		}
		if s.State != api.StateActive {
			t.Errorf("SCON is %s in the guest: %s", s.State, s.Why)
		}
		sum.express += s.Totals.ExpressPackets
		sum.regular += s.Totals.RegularPackets
	}
	return r, sum
}
