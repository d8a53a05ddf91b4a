package peers

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A case that passes on one side only, or runs on one side only, differs.
func TestDiffer(t *testing.T) {
	without := results{"same": failed, "worse": passed, "better": failed, "gone": passed, "left out": skipped}
	with := results{"same": failed, "worse": failed, "better": passed, "left out": skipped, "new": passed}
	want := []string{
		"better: failed without SCON, passed with it",
		"gone: passed without SCON, not run with it",
		"new: not run without SCON, passed with it",
		"worse: passed without SCON, failed with it",
	}
	if got := differ(without, with); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := row("s", "v1", without, with, counts{express: 30, regular: 10}), "| s | v1 | 4 | 2 | 2 | 4 | 30, 75.0 % | "; !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := row("s", "v1", without, with, counts{regular: 10}); !strings.Contains(got, "proves nothing") {
		t.Errorf("%q does not say that nothing went express", got)
	}
}

// Notes name the cases that differ, fail on both sides or are skipped, with the reason, and
// no others.
func TestNotes(t *testing.T) {
	without := results{"good": passed, "b": failed, "a": failed, "worse": passed, "c": skippedFor("no cloud"), "d": skippedFor("no cloud"), "e": skipped}
	with := maps.Clone(without)
	with["worse"] = failed
	want := "- s: worse: passed without SCON, failed with it\n- s: fails also without SCON: a; b\n" +
		"- s: skipped: no cloud: c; d\n- s: skipped: the suite does not say why: e\n"
	if got := notes("s", without, with); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The table has the lines of suites that ran at another time, too, and says of others that
// they did not run.
func TestTable(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "wrk.md"), []byte("| wrk | 4.1 |\n- wrk: a note\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := makeTable(dir)
	if err != nil || strings.Count(got, "| not run: not yet |") != len(suites)-1 || !strings.Contains(got, "\n| wrk | 4.1 |\n") || !strings.HasSuffix(got, "\n- wrk: a note\n") {
		t.Errorf("%v: %s", err, got)
	}
}

func TestParseGinkgo(t *testing.T) {
	got, err := parseGinkgo([]byte(`[{"SpecReports": [
		{"ContainerHierarchyTexts": ["bridge", "v4"], "LeafNodeType": "It", "LeafNodeText": "adds", "State": "passed"},
		{"ContainerHierarchyTexts": ["bridge", "v4"], "LeafNodeType": "It", "LeafNodeText": "adds", "State": "panicked"},
		{"ContainerHierarchyTexts": null, "LeafNodeType": "It", "LeafNodeText": "later", "State": "pending"},
		{"ContainerHierarchyTexts": null, "LeafNodeType": "It", "LeafNodeText": "elsewhere", "State": "skipped", "Failure": {"Message": "no\ncloud "}},
		{"ContainerHierarchyTexts": null, "LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
		{"ContainerHierarchyTexts": null, "LeafNodeType": "AfterSuite", "LeafNodeText": "", "State": "failed"}]}]`))
	want := results{"bridge v4 adds": passed, "bridge v4 adds (2)": failed, "later": skippedFor("pending"), "elsewhere": skippedFor("no cloud"), "AfterSuite ": failed}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := parseGinkgo([]byte("[")); err == nil {
		t.Error("a report that is cut off is no error")
	}
}

func TestParseTAP(t *testing.T) {
	got := make(results)
	parseTAP("f", "1..4\nok 1 a # b\nnot ok 2 c\n# (in test file f)\nok 3 d # skip cannot load it\nnot ok 4 e # timeout after 120s\n", got)
	want := results{"f: a # b": passed, "f: c": failed, "f: d": skippedFor("cannot load it"), "f: e": failed}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseGo(t *testing.T) {
	text := "=== RUN   TestA\n    --- PASS: TestA/b (0.00s)\n--- FAIL: TestA (0.10s)\n    c_test.go:12: no network\n--- SKIP: TestC (0.00s)\n"
	want := results{"TestA": failed, "TestA/b": passed, "TestC": skippedFor("no network")}
	if got := parseGo(text + "FAIL\n"); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	want["the program's end"] = failed
	if got := parseGo(text + "panic: test timed out\n"); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseSelftest(t *testing.T) {
	got := make(results)
	parseSelftest("a.sh", "TEST: ping            [ OK ]\n    TEST: Nexthop group      [FAIL]\nTEST: x [SKIP]\n", 1, got)
	parseSelftest("b.sh", "SKIP: no tool\n", 4, got)
	want := results{"a.sh: ping": passed, "a.sh: Nexthop group": failed, "a.sh: x": skipped, "a.sh": failed, "b.sh": skippedFor("no tool")}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseSelftests(t *testing.T) {
	r := parseSelftests("=== a.sh\nPASS: x\n=== status 0\n=== b.sh\r\nTEST: y  [ OK ]\n=== status 1\n")
	if want := (results{"a.sh": passed, "b.sh: y": passed, "b.sh": failed}); !maps.Equal(r, want) {
		t.Errorf("%v, want %v", r, want)
	}
}

func TestSumStatuses(t *testing.T) {
	const status = `{"state": "active", "totals": {"express_packets": 3, "regular_packets": 1}}`
	if c := sumStatuses(t, status+"\r\n"+status); c != (counts{6, 2}) {
		t.Errorf("%v", c)
	}
}

// Suites have names of their own.
func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range suites {
		if seen[s.name] || strings.ContainsAny(s.name, ", |") {
			t.Errorf("%q is no name of a suite", s.name)
		}
		seen[s.name] = true
	}
}

// What a suite's namespaces do is in the programs that call scon.sh: it is executable, and
// stops what it was told of before only, with what scon-cni.sh has of it.
func TestScript(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	if err := os.WriteFile(filepath.Join(dir, "scon"), []byte("#!/bin/sh\necho $1 >>"+log+"\n[ $1 != up ] || mkdir -p $7 "+dir+"/plugins/${7##*/}\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "counts"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"down", "up", "count", "down", "down"} {
		cmd := exec.Command("./scon.sh", verb, "/proc/self/ns/net")
		cmd.Env = append(os.Environ(), "PEERS="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", verb, err, out)
		}
	}
	text, err := os.ReadFile(log)
	if want := "up\nstatus\nstatus\ndown\n"; err != nil || string(text) != want {
		t.Errorf("%v: scon was called for %q, want %q", err, text, want)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "plugins")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left of scon-cni's", left, err)
	}
}

// Of Kubernetes' specs those of the network beyond conformance are cases; what is left out
// has a reason.
func TestKubernetesCases(t *testing.T) {
	got := kubernetesCases(results{
		"[sig-network] Services [Conformance] a": skipped, "[sig-storage] b": skipped, "[sig-network] Services c": passed,
		"[sig-network] d [Disruptive]": skipped, "[sig-network] e": skippedFor("one node only"),
	})
	want := results{"[sig-network] Services c": passed, "[sig-network] d [Disruptive]": skippedFor(kubernetesApart[1].why), "[sig-network] e": skippedFor("one node only")}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
