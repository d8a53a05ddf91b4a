package peers

import (
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/scon-project/scon/test/bed/vm"
)

// Podman's network, as its crate has it.
const (
	netavarkVersion = "2.1.0"
	netavarkSum     = "a7a69b66f7d6700d0202467820c343e35edade9e115bb2ac6f28f2630f4bb060" // SHA-256 of the crate
)

// netavarkHooks is added to the tests' helpers: it has their hosts call $PEERS_HOOK.
const netavarkHooks = `
eval "their_$(declare -f basic_setup)"
eval "their_$(declare -f basic_teardown)"
function basic_setup() {
    their_basic_setup
    [ -z "$PEERS_HOOK" ] || "$PEERS_HOOK" up /proc/$HOST_NS_PID/ns/net
}
function basic_teardown() {
    [ -z "$PEERS_HOOK" ] || "$PEERS_HOOK" down /proc/$HOST_NS_PID/ns/net
    their_basic_teardown
}
`

var netavarkSuites = []suite{{name: "netavark", prepare: findNetavark, guest: runNetavark}}

func findNetavark(t *testing.T) (string, error) {
	for _, program := range []string{"protoc", "cargo"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", &missing{program + " is not installed: scripts/install-deps.sh peers, and for cargo Rust 1.88 or newer"}
		}
	}
	if err := findGuest(); err != nil {
		return "", err
	}
	_, err := fetchNetavark()
	return netavarkVersion, err
}

// fetchNetavark returns a directory with netavark's sources, and its programs in
// target/debug.
var fetchNetavark = sync.OnceValues(func() (string, error) {
	name := fmt.Sprintf("netavark-%s-%08x", netavarkVersion, crc32.ChecksumIEEE([]byte(netavarkHooks)))
	return vm.Cached("peers", name, func(dir string) error {
		cargo := func(args ...string) error {
			cmd := exec.Command("cargo", args...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "CARGO_HOME="+filepath.Join(dir, "cargo"), "CARGO_PROFILE_DEV_STRIP=symbols")
			return run(cmd)
		}
		defer os.RemoveAll(filepath.Join(dir, "cargo"))
		// The crate comes with the dependencies of a package that needs nothing else.
		manifest := fmt.Sprintf("[package]\nname = \"fetch\"\nversion = \"0.0.0\"\n[lib]\npath = \"Cargo.toml\"\n[dependencies]\nnetavark = \"=%s\"\n", netavarkVersion)
		if err := os.WriteFile(filepath.Join(dir, "Cargo.toml"), []byte(manifest), 0o644); err != nil {
			return err
		}
		if err := cargo("fetch"); err != nil {
			return err
		}
		crates, err := filepath.Glob(filepath.Join(dir, "cargo/registry/cache/*/netavark-"+netavarkVersion+".crate"))
		if err != nil || len(crates) != 1 {
			return fmt.Errorf("fetch netavark: crates %q, %w", crates, err)
		}
		crate, err := os.ReadFile(crates[0])
		if err != nil {
			return err
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(crate)); sum != netavarkSum {
			return fmt.Errorf("the crate netavark %s has the checksum %s, want %s", netavarkVersion, sum, netavarkSum)
		}
		if err := run(exec.Command("tar", "--extract", "--gzip", "--strip-components=1", "--directory", dir, "--file", crates[0])); err != nil {
			return err
		}
		if err := cargo("build", "--locked", "--bins", "--examples"); err != nil {
			return err
		}
		for _, left := range []string{"deps", "build", "incremental"} {
			if err := os.RemoveAll(filepath.Join(dir, "target/debug", left)); err != nil {
				return err
			}
		}
		helpers, err := os.OpenFile(filepath.Join(dir, "test/helpers.bash"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer helpers.Close()
		_, err = helpers.WriteString(netavarkHooks)
		return err
	})
})

// runNetavark runs the tests with bats in a guest, which has their devices.
func runNetavark(t *testing.T, logs string, with bool) (results, counts) {
	dir, err := fetchNetavark()
	if err != nil {
		t.Fatal(err)
	}
	out, sum := inGuest(t, logs, with, func(add func(to, from string)) {
		for _, path := range []string{"test", "target/debug/netavark", "target/debug/netavark-connection-tester", "target/debug/examples"} {
			add("/netavark/"+path, filepath.Join(dir, path))
		}
	}, `cd /netavark
export NETAVARK=$PWD/target/debug/netavark TEST_PLUGINS=$PWD/target/debug/examples NETAVARK_CONNECTION_TESTER=$PWD/target/debug/netavark-connection-tester BATS_TEST_TIMEOUT=600
for file in test/*.bats; do
	echo "=== ${file##*/}"
	case $file in *firewalld.bats) echo "ok 1 all # skip the guest has no firewalld" ;; *) bats --tap $file ;; esac
done
`)
	r := make(results)
	for _, part := range strings.Split(out, "=== ")[1:] {
		file, text, _ := strings.Cut(part, "\n")
		parseTAP(strings.TrimSpace(file), strings.ReplaceAll(text, "\r", ""), r)
	}
	return r, sum
}

// tapLine is the line of a case in TAP, the Test Anything Protocol.
var tapLine = regexp.MustCompile(`(?m)^(ok|not ok) \d+ (.*?)(?: # (skip|timeout)(.*))?$`)

// parseTAP reads the cases of a file.
func parseTAP(file, text string, r results) {
	for _, m := range tapLine.FindAllStringSubmatch(text, -1) {
		o := passed
		switch {
		case m[1] == "not ok":
			o = failed
		case m[3] == "skip":
			o = skippedFor(m[4])
		}
		r.add(file+": "+m[2], o)
	}
}
