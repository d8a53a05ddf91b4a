package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// moby has Docker's bridge driver, with tests of it by both firewalls.
var moby = module{"github.com/moby/moby/v2", "v2.0.0-beta.24", "h1:sWv7EckkDJhpraR9yUjkw1XeVf39+MWd58E22PYloNA="}

// mobyPackages are the packages, below daemon/libnetwork, that make networks in network
// namespaces of their own, by suite.
var mobyPackages = [][2]string{
	{"moby-bridge", "drivers/bridge"}, {"moby-iptabler", "drivers/bridge/internal/iptabler"}, {"moby-nftabler", "drivers/bridge/internal/nftabler"},
	{"moby-portmapper", "portmappers/nat"}, {"moby-iptables", "iptables"}, {"moby-nftables", "internal/nftables"}, {"moby-libnetwork", "."}, {"moby-sandbox", "osl"},
}

var mobySuites = func() (all []suite) {
	for _, p := range mobyPackages {
		all = append(all, suite{
			name:    p[0],
			prepare: func(t *testing.T) (string, error) { _, err := fetchMoby(); return moby.version, err },
			run: func(t *testing.T, h *host) results {
				dir, err := fetchMoby()
				if err != nil {
					t.Fatal(err)
				}
				pkg := filepath.Join(dir, libnetwork, p[1])
				text, err := os.ReadFile(h.log("output", h.command(pkg, filepath.Join(dir, "tests", filepath.Base(pkg)+".test"), "-test.v", "-test.timeout=4h")))
				if err != nil {
					t.Fatal(err)
				}
				return parseGo(string(text))
			},
		})
	}
	return all
}()

const libnetwork = "daemon/libnetwork"

// mobyHook has the tests' namespaces call $PEERS_HOOK.
const mobyHook = `package netnsutils

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func hook(t *testing.T, verb string, c *OSContext) {
	t.Helper()
	if program := os.Getenv("PEERS_HOOK"); program != "" {
		if out, err := exec.Command(program, verb, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.newNS)).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", verb, err, out)
		}
	}
}
`

// fetchMoby returns a directory with moby's sources, and the packages' test programs in tests.
var fetchMoby = sync.OnceValues(func() (string, error) {
	return moby.fetch(mobyHook+fmt.Sprint(mobyPackages), func(dir string) error {
		utils := filepath.Join(dir, "internal/testutil/netnsutils")
		file := filepath.Join(utils, "context_unix.go")
		if err := replace(file, "\treturn &c\n", "\thook(t, \"up\", &c)\n\treturn &c\n"); err != nil {
			return err
		}
		if err := replace(file, "\tif err := c.newNS.Close()", "\thook(t, \"down\", c)\n\tif err := c.newNS.Close()"); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(utils, "peers_linux.go"), []byte(mobyHook), 0o644); err != nil {
			return err
		}
		compile := []string{"test", "-c", "-o", "tests/"}
		for _, p := range mobyPackages {
			compile = append(compile, "./"+filepath.Join(libnetwork, p[1]))
		}
		return run(goTool(dir, compile...))
	})
})

// goVerdict is the line of a case in the output of a test program of Go's, with what it said
// last.
var goVerdict = regexp.MustCompile(`(?m)(?:^ +\S+\.go:\d+: (.*)\n)?^ *--- (PASS|FAIL|SKIP): (\S+) \(`)

// parseGo reads the output of a test program of Go's. One that did not end has failed.
func parseGo(text string) results {
	r := make(results)
	for _, m := range goVerdict.FindAllStringSubmatch(text, -1) {
		r.add(m[3], map[string]outcome{"PASS": passed, "FAIL": failed, "SKIP": skippedFor(m[1])}[m[2]])
	}
	if !strings.Contains(text, "\nPASS\n") && !strings.Contains(text, "\nFAIL\n") {
		r.add("the program's end", failed)
	}
	return r
}
