package kernels

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// suite is the work of one guest: packages, tested one after the other.
type suite struct {
	name     string
	packages []string
	only     []string // tests to run; all if it is empty
	leftOut  []string // tests to leave out
	args     string   // arguments of the test binaries
	several  bool     // as job.several
	hardware bool     // needs drivers that kernels for virtual machines lack
	bridges  bool     // needs br_netfilter
	programs bool     // needs scon-cni and scon-oci, which are in C: only in guests of this machine's architecture
}

// has reports whether a test or subtest belongs to the suite.
func (s suite) has(test string) bool {
	test, _, _ = strings.Cut(test, "/")
	return (len(s.only) == 0 || slices.Contains(s.only, test)) && !slices.Contains(s.leftOut, test)
}

// flags returns the flags of its test binaries, quoted for a shell.
func (s suite) flags() string {
	flags := "-test.v " + s.args
	if len(s.only) > 0 {
		flags += " -test.run=" + anyOf(s.only)
	}
	if len(s.leftOut) > 0 {
		flags += " -test.skip=" + anyOf(s.leftOut)
	}
	return flags
}

// anyOf returns a pattern that matches any of the tests' names.
func anyOf(tests []string) string { return "'^(" + strings.Join(tests, "|") + ")$'" }

var suites = []suite{
	{name: "units", packages: []string{
		"internal/express/datapath", "internal/express/contable", "internal/express/rules", "internal/host/changes", "internal/express/conntrack",
		"internal/express/discover", "internal/doctor",
	}},
	{name: "topology", packages: []string{"lab/topology"}},
	{name: "daemon", packages: []string{"internal/express"}, bridges: true, leftOut: slices.Concat(ownLogic, stress, long, order, drivers)},
	{name: "drivers", packages: []string{"internal/express"}, only: drivers, hardware: true},
	{name: "pipe", packages: []string{"internal/pipe", "internal/pipe/bpf"}, only: hostile},
	{name: "order", packages: []string{"internal/express"}, bridges: true, only: order, several: true},
	{name: "kinds", packages: []string{"internal/startup"}, only: kinds, programs: true},
	{name: "differential", packages: []string{"test/differential"}, bridges: true, args: "-cases=10"},
}

// ownLogic are the daemon's tests of settings, files, table and clients. They do not
// depend on the kernel, and each would take seconds in a guest.
var ownLogic = []string{
	"TestAdmit", "TestCorruptState", "TestExplainTracked", "TestIdle", "TestMetrics", "TestMetricsElsewhere", "TestMetricsOnly",
	"TestMissingDevice", "TestPausedLease", "TestPinsOfAnother", "TestPinsOfLiving", "TestSecondDaemon", "TestShare",
	"TestTotalsGrow", "TestUncounted",
}

// kinds are the tests of containers' devices that depend on the kernel.
var kinds = []string{
	"TestInPlace", "TestKinds", "TestMarked", "TestQoS", "TestRouting", "TestRules", "TestSwap", "TestTap", "TestTenantsApart",
}

// hostile are the pipe's tests with processes that do not use the library.
var hostile = []string{
	"TestBellIsChecked", "TestBellPassesNoFiles", "TestCopierDrains", "TestCopierHoles", "TestCopierInvalidPage", "TestForgedNumbers", "TestGrowBounds", "TestHostilePool", "TestHostilePoolReader", "TestHostileReceiver", "TestHostileSender", "TestLoan", "TestInvalidLoans", "TestLendRefused", "TestPoolCharged", "TestPoolRingIsSeen", "TestPoolRingsOfFailedCopies",
	"TestReplayedDoorbell", "TestRingEnd", "TestSealedIsReadOnly",
}

// stress are tests that repeat the work of other tests many times. In an emulator each
// takes minutes, and the daemon cannot keep up.
var stress = []string{"TestCrowd", "TestExplainMany", "TestFlood", "TestKillAtAnyMoment", "TestManyContainers", "TestRuleAboutOneOfMany", "TestRulesAmongNewPorts"}

// long are tests that only the long form has.
var long = []string{"TestSlowestFlows"}

// drivers are tests that need drivers that kernels for virtual machines lack.
var drivers = []string{"TestUplinkPPP", "TestUplinkWiFi"}

// order are tests whose packets can be reordered only between CPUs.
var order = []string{"TestNetkitOrder", "TestOrder", "TestOrderBetweenContainers"}

// testedBy returns the package of a test binary.
func testedBy(binary string) (pkg string, ok bool) {
	for _, s := range suites {
		for _, p := range s.packages {
			if binaryOf(p) == binary {
				return p, true
			}
		}
	}
	return "", false
}

func binaryOf(pkg string) string { return filepath.Base(pkg) + ".test" }

// Every test that depends on the kernel passes on each kernel.
func TestTests(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-kernels")
	}
	for _, g := range guests {
		for _, s := range suites {
			if s.programs && g.arch != runtime.GOARCH || s.hardware && !g.hardware {
				continue
			}
			t.Run(g.name+"/"+s.name, func(t *testing.T) {
				t.Parallel() // a guest uses one CPU of this machine; its clock does not advance while others run
				g.test(t, s)
			})
		}
	}
}

// The packages of all suites exist, each in its module.
func TestSuitesNameExistingPackages(t *testing.T) {
	all := make(map[string][]string)
	for _, s := range suites {
		for _, pkg := range s.packages {
			module, path := inModule(pkg)
			all[module] = append(all[module], path)
		}
	}
	for module, paths := range all {
		cmd := exec.Command("go", append([]string{"-C", module, "list"}, paths...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("module %s lacks packages of suites: %v: %s", module, err, out)
		}
	}
}

// All tests that the suites name exist.
func TestSuitesNameExistingTests(t *testing.T) {
	for _, s := range suites {
		named := slices.Concat(s.only, s.leftOut)
		if len(named) == 0 {
			continue
		}
		var all []string
		for _, pkg := range s.packages {
			all = append(all, testsOf(t, pkg)...)
		}
		for _, test := range named {
			if !slices.Contains(all, test) {
				t.Errorf("suite %s names %s, which does not exist", s.name, test)
			}
		}
	}
}

// testsOf returns the tests of a package, without subtests. Those for the fuzzer, which
// run on their examples, count as well.
func testsOf(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command(build(t, runtime.GOARCH, binaryOf(pkg)), "-test.list=^(Test|Fuzz)").CombinedOutput()
	if err != nil {
		t.Fatalf("list the tests of %s: %v: %s", pkg, err, out)
	}
	return strings.Fields(string(out))
}

// packageMark precedes the output of a package's tests, exitMark follows it.
const (
	packageMark = "=== package "
	exitMark    = "=== status "
)

// test runs a suite.
func (g guest) test(t *testing.T, s suite) {
	t.Helper()
	j := job{files: make(map[string]string), several: s.several, hardware: s.hardware, command: "modprobe nf_conntrack\n"}
	if s.bridges {
		j.command += "modprobe br_netfilter\n"
	}
	if s.hardware {
		j.command += "modprobe mac80211_hwsim radios=3\n"
	}
	if s.programs {
		for _, name := range []string{"scon-cni", "scon-oci"} {
			j.files["/opt/"+name] = buildC(t, name)
		}
	}
	for _, folder := range []string{"bpf", "packaging"} { // tests read these files
		addFolder(t, j.files, filepath.Join(root, folder), "/src/"+folder)
	}
	for _, pkg := range s.packages {
		binary, folder := "/opt/"+binaryOf(pkg), "/src/"+pkg
		j.files[binary] = build(t, g.arch, binaryOf(pkg))
		addFolder(t, j.files, filepath.Join(root, pkg, "testdata"), folder+"/testdata")
		j.command += fmt.Sprintf("echo '%s%s'; mkdir -p %s; cd %[3]s; %s %s; echo \"%s$?\"\n",
			packageMark, pkg, folder, binary, s.flags(), exitMark)
	}
	seen := &progress{t: t, start: time.Now()}
	for _, pkg := range s.packages {
		for _, test := range testsOf(t, pkg) {
			if s.has(test) {
				seen.all++
			}
		}
	}
	j.console = seen
	results := strings.Split(g.output(t, j), packageMark)[1:]
	t.Logf("%d s, boot included", int(time.Since(seen.start).Seconds()))
	for i, pkg := range s.packages {
		if i >= len(results) {
			t.Errorf("no output of %s", pkg)
			continue
		}
		skips := slices.DeleteFunc(slices.Clone(g.skips[pkg]), func(test string) bool { return !s.has(test) })
		check(t, pkg, results[i], skips)
	}
}

// verdict matches the line that a test prints when it ends.
var verdict = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP|FAIL): (\S+) \(`)

// check checks the output of a package's tests: all passed, and exactly the
// expected ones were skipped.
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
		t.Errorf("%s: skipped tests %q, want %q", pkg, tests["SKIP"], skips)
	}
}
