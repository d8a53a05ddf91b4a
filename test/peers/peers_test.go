// Package peers runs tests that others wrote, twice: without SCON, and with SCON active in
// the same network namespaces from before their start. A case that differs is a fault of
// SCON until shown otherwise; a suite of which no packet went express proves little, and
// the table says so.
//
// What it needs is fetched by package clients, pinned by version and checksum, and kept in
// the cache of downloads.
package peers

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	full   = flag.Bool("full", false, "fetch the suites and run them: hours")
	chosen = flag.String("suites", "", "suites to run, by name and separated by commas; all by default")
)

// suite is a suite of tests of others.
type suite struct {
	name string
	// prepare fetches and builds what the suite needs, and returns its version. An error
	// of a *missing says why it cannot run here.
	prepare func(t *testing.T) (version string, err error)
	// run runs all cases on a host that has devices of a kind ("" for any); else guest does
	// so on machines that the suite starts: a guest with another kernel, a cluster.
	kind  string
	run   func(t *testing.T, h *host) results
	guest func(t *testing.T, logs string, with bool) (results, counts)
}

var suites = slices.Concat(cniSuites, netavarkSuites, mobySuites, selftestSuites, kubernetesSuites, nftablesSuites, programSuites)

// hasDevices reports whether this machine's kernel has devices of a kind.
func hasDevices(kind string) bool {
	return kind == "" || exec.Command("unshare", append([]string{"--net", "ip", "link", "add", "x", "type"}, strings.Fields(kind)...)...).Run() == nil
}

// nftablesSuites are the tests/shell of nftables, if they could be had.
var nftablesSuites = []suite{{
	name: "nftables-shell",
	prepare: func(t *testing.T) (string, error) {
		return "", &missing{"no registry in reach has nftables' sources: Debian's mirror lacks the archives that its list of source packages names"}
	},
}}

// missing says why a suite cannot run here.
type missing struct{ what string }

func (m *missing) Error() string { return m.what }

// outcome is what became of a case.
type outcome struct {
	word string
	why  string // of one that is skipped, as the suite says it; may be ""
}

var (
	passed  = outcome{word: "passed"}
	failed  = outcome{word: "failed"}
	skipped = outcome{word: "skipped"}
)

// skippedFor is a case that is skipped for a reason, which becomes one line.
func skippedFor(why string) outcome {
	return outcome{skipped.word, strings.Join(strings.Fields(why), " ")}
}

// results are the outcomes of cases, by their names.
type results map[string]outcome

// count returns how many cases have an outcome, for whatever reason.
func (r results) count(o outcome) (n int) {
	for _, of := range r {
		if of.word == o.word {
			n++
		}
	}
	return n
}

// differ returns the cases whose outcomes differ, in order, with both. A case that one side
// lacks was not run there.
func differ(without, with results) (cases []string) {
	of := func(r results, name string) string {
		if o, ran := r[name]; ran {
			return o.word
		}
		return "not run"
	}
	all := maps.Clone(without)
	maps.Copy(all, with)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if a, b := of(without, name), of(with, name); a != b {
			cases = append(cases, fmt.Sprintf("%s: %s without SCON, %s with it", name, a, b))
		}
	}
	return cases
}

// named is how many cases of the same kind a note names.
const named = 6

// notes returns, as a list, which cases differ, which fail also without SCON, and which a
// suite skips, by the reason that it gives.
func notes(name string, without, with results) (list string) {
	groups := make(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(without)) {
		switch o := without[name]; {
		case o == failed && with[name] == failed:
			groups["fails also without SCON"] = append(groups["fails also without SCON"], name)
		case o.word == skipped.word && with[name].word == skipped.word:
			why := "skipped: " + cmp.Or(o.why, "the suite does not say why")
			groups[why] = append(groups[why], name)
		}
	}
	for _, line := range differ(without, with) {
		list += fmt.Sprintf("- %s: %s\n", name, line)
	}
	for _, why := range slices.Sorted(maps.Keys(groups)) {
		cases := groups[why]
		if others := len(cases) - named; others > 0 {
			cases = append(cases[:named:named], fmt.Sprintf("and %d others", others))
		}
		list += fmt.Sprintf("- %s: %s: %s\n", name, why, strings.Join(cases, "; "))
	}
	return list
}

const heading = "| suite | version | cases | passed without | passed with | differ | express packets | when |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"

// row returns the line of the table about a suite. Skipped cases are no cases.
func row(name, version string, without, with results, express counts) string {
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %v | %s |\n", name, version,
		len(without)-without.count(skipped), without.count(passed), with.count(passed), len(differ(without, with)), express, time.Now().UTC().Format(time.DateOnly))
}

// notRun is the line about a suite that did not run.
func notRun(name, why string) string {
	return fmt.Sprintf("| %s | not run: %s | | | | | | |\n", name, why)
}

// Each suite has the same outcomes without and with SCON. A suite's line and notes are in
// dist/peers/SUITE.md, beside its logs; dist/peers/table.md is made of those of all suites
// that have ever run, so that suites can be run by parts.
func TestPeers(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-peers")
	}
	names := make(map[string]bool)
	for _, s := range suites {
		names[s.name] = *chosen == ""
	}
	for name := range strings.SplitSeq(*chosen, ",") {
		if _, known := names[name]; name != "" && !known {
			t.Fatalf("there is no suite %q", name)
		}
		names[name] = true
	}
	dir, err := filepath.Abs("../../dist/peers")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the sources may be a user's
		if err := run(exec.Command("chown", "--recursive", "--reference=../..", dir)); err != nil {
			t.Error(err)
		}
	})
	for _, s := range suites {
		if !names[s.name] {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			line, notes := s.test(t, filepath.Join(dir, s.name))
			t.Log(line + notes)
			if err := os.WriteFile(filepath.Join(dir, s.name+".md"), []byte(line+notes), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	table, err := makeTable(dir)
	if err != nil {
		t.Error(err)
	}
	t.Log("\n" + table)
	if err := os.WriteFile(filepath.Join(dir, "table.md"), []byte(table), 0o644); err != nil {
		t.Error(err)
	}
}

// makeTable returns the table of all suites that have left their line in a directory.
func makeTable(dir string) (string, error) {
	machine, err := describeMachine()
	if err != nil {
		return "", err
	}
	table, below := "# Tests of others, without and with SCON\n\n"+machine+"\n\n"+heading, ""
	for _, s := range suites {
		text, err := os.ReadFile(filepath.Join(dir, s.name+".md"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			table += notRun(s.name, "not yet")
		case err != nil:
			return "", err
		default:
			line, notes, _ := strings.Cut(string(text), "\n")
			table, below = table+line+"\n", below+notes
		}
	}
	return table + "\n## Cases\n\n" + below, nil
}

// describeMachine names this machine's kernel, processors and memory.
func describeMachine() (string, error) {
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "", fmt.Errorf("sysinfo: %w", err)
	}
	model := "processors"
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(cpu); m != nil {
		model = string(m[1])
	}
	return fmt.Sprintf("Made by `make test-peers` on %d x %s, %d GiB, Linux %s.", runtime.NumCPU(), model,
		uint64(info.Totalram)*uint64(info.Unit)>>30, unix.ByteSliceToString(uname.Release[:])), nil
}

// test runs a suite twice, with logs in LOGS-without and LOGS-with, and returns its line of
// the table and its notes.
func (s suite) test(t *testing.T, logs string) (line, about string) {
	version, err := s.prepare(t)
	if without := new(missing); errors.As(err, &without) {
		return notRun(s.name, without.what), ""
	}
	if err != nil {
		t.Error(err)
		return notRun(s.name, "it could not be prepared"), ""
	}
	var both [2]results
	var express counts
	for i, side := range []string{"without", "with"} {
		begin := time.Now()
		if s.run == nil || !hasDevices(s.kind) {
			both[i], express = s.guest(t, logs+"-"+side, side == "with")
		} else {
			h := newHost(t, logs+"-"+side, side == "with")
			both[i] = s.run(t, h)
			express = h.close()
		}
		if both[0].count(passed) == 0 {
			t.Errorf("no case passed without SCON: see %s-without", logs)
			return notRun(s.name, "no case passed without SCON"), ""
		}
		t.Logf("%s SCON: %d of %d passed, %v", side, both[i].count(passed), len(both[i]), time.Since(begin).Round(time.Second))
	}
	for _, line := range differ(both[0], both[1]) {
		if strings.HasSuffix(line, " passed with it") { // no fault of SCON, but of the case
			t.Log(line)
		} else {
			t.Error(line)
		}
	}
	return row(s.name, version, both[0], both[1], express), notes(s.name, both[0], both[1])
}
