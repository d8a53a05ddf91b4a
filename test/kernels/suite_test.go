package kernels

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// suite is what one guest tests: packages, one after the other.
type suite struct {
	name     string
	packages []string
	args     string // of their tests
	// icount is for tests that play the regular way, step by step: the guest's
	// clock must not run on while this machine is busy.
	icount bool
}

var suites = []suite{
	{name: "datapath", packages: []string{"internal/datapath"}, icount: true},
	{name: "parts", packages: []string{
		"internal/contable", "internal/rules", "internal/changes", "internal/conntrack", "internal/discover", "internal/doctor",
	}},
	// The flood takes minutes in an emulator, which a daemon cannot keep up with.
	{name: "daemon", packages: []string{"internal/daemon"}, args: "-test.skip=^TestFlood$"},
	{name: "differential", packages: []string{"test/differential"}, args: "-cases=10"},
}

// testedBy returns the package that a test binary is of.
func testedBy(binary string) (pkg string, ok bool) {
	for _, s := range suites {
		for _, p := range s.packages {
			if binaryOf(p) == binary {
				return "./" + p, true
			}
		}
	}
	return "", false
}

func binaryOf(pkg string) string { return filepath.Base(pkg) + ".test" }

// Every test of what depends on the kernel passes on each.
func TestTests(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-kernels")
	}
	for _, g := range guests {
		for _, s := range suites {
			t.Run(g.name+"/"+s.name, func(t *testing.T) { g.test(t, s) })
		}
	}
}

// packageMark stands before what a package's tests print, exitMark after it.
const (
	packageMark = "=== package "
	exitMark    = "=== status "
)

// test runs a suite.
func (g guest) test(t *testing.T, s suite) {
	t.Helper()
	j := job{files: make(map[string]string), icount: s.icount}
	addFolder(t, j.files, filepath.Join(root, "bpf"), "/src/bpf") // a test reads it
	for _, pkg := range s.packages {
		binary, folder := "/opt/"+binaryOf(pkg), "/src/"+pkg
		j.files[binary] = build(t, g.arch, binaryOf(pkg))
		addFolder(t, j.files, filepath.Join(root, pkg, "testdata"), folder+"/testdata")
		j.command += fmt.Sprintf("echo '%s%s'; mkdir -p %s; cd %[3]s; %s -test.v %s; echo \"%s$?\"\n",
			packageMark, pkg, folder, binary, s.args, exitMark)
	}
	start := time.Now()
	results := strings.Split(g.output(t, j), packageMark)[1:]
	t.Logf("%d s, boot included", int(time.Since(start).Seconds()))
	for i, pkg := range s.packages {
		if i >= len(results) {
			t.Errorf("nothing came from %s", pkg)
			continue
		}
		check(t, pkg, results[i], g.skips[pkg])
	}
}

// verdict is what a test prints when it ends.
var verdict = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP|FAIL): (\S+) \(`)

// check looks at what a package's tests printed: they passed, and those that
// were skipped are the ones that had to be.
func check(t *testing.T, pkg, out string, skips []string) {
	t.Helper()
	tests := make(map[string][]string)
	for _, m := range verdict.FindAllStringSubmatch(out, -1) {
		tests[m[1]] = append(tests[m[1]], m[2])
	}
	t.Logf("%s: %d passed, %d skipped", pkg, len(tests["PASS"]), len(tests["SKIP"]))
	if !strings.Contains(out, exitMark+"0\n") || len(tests["FAIL"]) > 0 || len(tests["PASS"]) == 0 {
		t.Errorf("%s: failed %q:\n%s", pkg, tests["FAIL"], out)
		return
	}
	slices.Sort(tests["SKIP"])
	if !slices.Equal(tests["SKIP"], skips) {
		t.Errorf("%s: skipped are %q, which should be %q", pkg, tests["SKIP"], skips)
	}
}
