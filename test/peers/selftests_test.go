package peers

import (
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/vm"
)

// The kernel's own tests, as Debian's package of its sources has them.
const (
	linuxPackage = "linux-source-6.12"
	linuxVersion = "6.12.117-1~deb12u1"
	linuxSum     = "e849faf31ca3555757f3a8877cb01af92122f744f75d1f3102734651c4e14703" // SHA-256 of the package
)

// selftestSuites are scripts below tools/testing/selftests/net, by parts: SCON takes seconds
// to start in each of their hundreds of namespaces.
var selftestSuites = func() (all []suite) {
	for _, s := range []struct {
		name    string
		scripts []string
	}{
		{"selftests-netfilter", []string{
			"netfilter/br_netfilter.sh", "netfilter/bridge_brouter.sh", "netfilter/conntrack_icmp_related.sh", "netfilter/conntrack_ipip_mtu.sh",
			"netfilter/conntrack_reverse_clash.sh", "netfilter/conntrack_sctp_collision.sh", "netfilter/conntrack_tcp_unreplied.sh", "netfilter/conntrack_vrf.sh",
			"netfilter/ipvs.sh", "netfilter/nf_nat_edemux.sh", "netfilter/nft_conntrack_helper.sh", "netfilter/nft_fib.sh", "netfilter/nft_flowtable.sh",
			"netfilter/nft_meta.sh", "netfilter/nft_nat.sh", "netfilter/nft_nat_zones.sh", "netfilter/nft_synproxy.sh", "netfilter/nft_tproxy_tcp.sh",
			"netfilter/nft_tproxy_udp.sh", "netfilter/rpath.sh", "netfilter/vxlan_mtu_frag.sh", "netfilter/xt_string.sh",
		}},
		{"selftests-net", []string{
			"fib_nexthop_multiprefix.sh", "fib_nexthop_nongw.sh", "fib_rule_tests.sh", "fib_tests.sh", "rtnetlink.sh", "icmp.sh", "icmp_redirect.sh",
			"route_localnet.sh", "traceroute.sh", "gre_gso.sh",
		}},
		{"selftests-nexthops", []string{"fib_nexthops.sh"}},
		{"selftests-vxlan", []string{
			"test_bridge_backup_port.sh", "test_bridge_neigh_suppress.sh", "test_vxlan_mdb.sh", "test_vxlan_nolocalbypass.sh", "test_vxlan_under_vrf.sh",
			"test_vxlan_vnifiltering.sh",
		}},
		{"selftests-pmtu", []string{"pmtu.sh"}},
		{"selftests-forwarding", []string{
			"forwarding/bridge_igmp.sh", "forwarding/bridge_locked_port.sh", "forwarding/bridge_mdb.sh", "forwarding/bridge_mdb_port_down.sh", "forwarding/bridge_mld.sh",
			"forwarding/bridge_port_isolation.sh", "forwarding/bridge_sticky_fdb.sh", "forwarding/bridge_vlan_aware.sh", "forwarding/bridge_vlan_unaware.sh",
			"forwarding/no_forwarding.sh", "forwarding/router.sh", "forwarding/router_bridge.sh", "forwarding/router_bridge_vlan.sh", "forwarding/router_multicast.sh",
		}},
	} {
		all = append(all, suite{
			name: s.name,
			prepare: func(t *testing.T) (string, error) {
				if err := findGuest(); err != nil {
					return "", err
				}
				_, err := fetchSelftests()
				return linuxVersion, err
			},
			guest: func(t *testing.T, logs string, with bool) (results, counts) {
				return runSelftests(t, s.scripts, logs, with)
			},
		})
	}
	return all
}()

// selftestHooks is added to the tests' library: it has their namespaces call $PEERS_HOOK, and
// leaves SCON alone when a script kills all processes of a namespace, whose IDs it gives to
// xargs.
const selftestHooks = `
xargs()
{
	grep -vxF "$(pgrep -f '^scon daemon')" | command xargs "$@"
}
eval "their_$(declare -f setup_ns)"
eval "their_$(declare -f cleanup_ns)"
setup_ns()
{
	local peers_ns
	their_setup_ns "$@" || return
	[ -n "$PEERS_HOOK" ] || return 0
	for peers_ns in "$@"; do
		case $peers_ns in cl[0-9]*) continue ;; esac # one of a hundred clients
		"$PEERS_HOOK" up "/run/netns/${!peers_ns}" || return
	done
}
cleanup_ns()
{
	local peers_ns
	for peers_ns in "$@"; do
		[ -z "$PEERS_HOOK" ] || [ ! -e "/run/netns/$peers_ns" ] || "$PEERS_HOOK" down "/run/netns/$peers_ns"
	done
	their_cleanup_ns "$@"
}
`

// selftestPrograms are the programs that scripts call.
var selftestPrograms = []string{"netfilter/connect_close", "netfilter/conntrack_reverse_clash", "netfilter/sctp_collision", "nettest"}

// selftestsApart are tests of scripts that are left out: each has the processors busy for 300 s
// of a guest's time, and passes unless the kernel crashes.
var selftestsApart = map[string][]string{"fib_nexthops.sh": {"ipv4_torture", "ipv4_res_torture", "ipv6_torture", "ipv6_res_torture"}}

// fetchSelftests returns the directory tools/testing/selftests/net of the kernel's sources.
func fetchSelftests() (string, error) {
	name := fmt.Sprintf("selftests-%s-%08x", linuxVersion, crc32.ChecksumIEEE([]byte(selftestHooks+fmt.Sprint(selftestPrograms, selftestsApart))))
	dir, err := vm.Cached("peers", name, func(dir string) error {
		work := filepath.Join(dir, "package")
		if err := os.Mkdir(work, 0o755); err != nil {
			return err
		}
		cmd := exec.Command("apt-get", "-qq", "download", linuxPackage+"="+linuxVersion)
		cmd.Dir = work
		if err := run(cmd); err != nil {
			return &missing{err.Error()}
		}
		debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
		if err != nil || len(debs) != 1 {
			return fmt.Errorf("fetch %s: packages %q, %w", linuxPackage, debs, err)
		}
		if sum, err := sha256Of(debs[0]); err != nil || sum != linuxSum {
			return fmt.Errorf("%s %s has the checksum %s, want %s: %w", linuxPackage, linuxVersion, sum, linuxSum, err)
		}
		if err := run(exec.Command("dpkg-deb", "--extract", debs[0], work)); err != nil {
			return err
		}
		if err := run(exec.Command("tar", "--extract", "--strip-components=1", "--directory", dir, "--file", filepath.Join(work, "usr/src", linuxPackage+".tar.xz"),
			linuxPackage+"/tools/testing/selftests/net", linuxPackage+"/tools/testing/selftests/kselftest")); err != nil {
			return err
		}
		net := filepath.Join(dir, "tools/testing/selftests/net")
		for _, program := range selftestPrograms {
			if err := run(exec.Command("cc", "-o", filepath.Join(net, program), filepath.Join(net, program)+".c")); err != nil {
				return err
			}
		}
		for script, tests := range selftestsApart {
			for _, test := range tests {
				if err := replace(filepath.Join(net, script), "\t"+test+"\n", ""); err != nil {
					return err
				}
			}
		}
		if err := os.Rename(filepath.Join(net, "forwarding/forwarding.config.sample"), filepath.Join(net, "forwarding/forwarding.config")); err != nil {
			return err
		}
		lib, err := os.OpenFile(filepath.Join(net, "lib.sh"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer lib.Close()
		if _, err := lib.WriteString(selftestHooks); err != nil {
			return err
		}
		return os.RemoveAll(work)
	})
	return filepath.Join(dir, "tools/testing/selftests/net"), err
}

func sha256Of(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}

// runSelftests runs scripts in a guest, one after the other.
func runSelftests(t *testing.T, scripts []string, logs string, with bool) (results, counts) {
	dir, err := fetchSelftests()
	if err != nil {
		t.Fatal(err)
	}
	out, sum := inGuest(t, logs, with, func(add func(to, from string)) { add("/net", dir) }, "export KSFT_MACHINE_SLOW=yes\n"+
		"for script in "+strings.Join(scripts, " ")+"; do cd \"/net/$(dirname $script)\"; echo \"=== ${script##*/}\"; timeout 3600 bash \"./${script##*/}\" 2>&1; echo \"=== status $?\"; done\n")
	r := parseSelftests(out)
	for _, script := range scripts {
		for _, test := range selftestsApart[script] {
			r.add(script+": "+test, skippedFor("hours without KVM, and passes unless the kernel crashes"))
		}
	}
	return r, sum
}

// selftest is the output of a script in a guest.
var selftest = regexp.MustCompile(`(?s)=== (\S+\.sh)\r?\n(.*?)=== status (\d+)`)

// parseSelftests reads the output of all scripts.
func parseSelftests(out string) results {
	r := make(results)
	for _, m := range selftest.FindAllStringSubmatch(out, -1) {
		status, _ := strconv.Atoi(m[3]) // digits
		parseSelftest(m[1], m[2], status, r)
	}
	return r
}

// selftestLine is the line of a case of a script that has several.
var selftestLine = regexp.MustCompile(`(?m)^ *TEST: (.*?) +\[ *(OK|FAIL|XFAIL|SKIP) *\]`)

// parseSelftest reads the output of a script. Its exit status is a case as well: 4 is that
// it was skipped.
func parseSelftest(script, text string, status int, r results) {
	for _, m := range selftestLine.FindAllStringSubmatch(text, -1) {
		r.add(script+": "+m[1], map[string]outcome{"OK": passed, "FAIL": failed, "XFAIL": skipped, "SKIP": skipped}[m[2]])
	}
	switch status {
	case 0:
		r.add(script, passed)
	case 4:
		why := ""
		for _, m := range selftestSkip.FindAllStringSubmatch(text, -1) {
			why = m[1]
		}
		r.add(script, skippedFor(why))
	default:
		r.add(script, failed)
	}
}

// selftestSkip is the line of why a script was skipped.
var selftestSkip = regexp.MustCompile(`(?m)(?:SKIP: *)(.*?)\r?$`)
