// Package peers runs tests that others wrote, twice: without SCON, and with SCON active in
// the same network namespaces from before their start. A case that differs is a fault of
// SCON until shown otherwise; a suite of which no packet went express proves little, and
// the table says so.
//
// What it needs is fetched by package clients, pinned by version and checksum, and kept in
// the cache of downloads.
package peers

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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
	// run runs all cases on a host; guest instead of it in a guest with another kernel.
	run   func(t *testing.T, h *host) results
	guest func(t *testing.T, logs string, with bool) (results, counts)
}

var suites = slices.Concat(cniSuites, netavarkSuites, mobySuites, selftestSuites, guestSuites, nftablesSuites, programSuites)

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
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped"
)

// results are the outcomes of cases, by their names.
type results map[string]outcome

// count returns how many cases have an outcome.
func (r results) count(o outcome) (n int) {
	for _, of := range r {
		if of == o {
			n++
		}
	}
	return n
}

// differ returns the cases whose outcomes differ, in order, with both. A case that one side
// lacks was not run there.
func differ(without, with results) (cases []string) {
	of := func(r results, name string) outcome {
		if o, ran := r[name]; ran {
			return o
		}
		return "not run"
	}
	all := make(map[string]bool)
	for _, r := range []results{without, with} {
		for name := range r {
			all[name] = true
		}
	}
	for name := range all {
		if a, b := of(without, name), of(with, name); a != b {
			cases = append(cases, fmt.Sprintf("%s: %s without SCON, %s with it", name, a, b))
		}
	}
	slices.Sort(cases)
	return cases
}

const heading = "| suite | version | cases | passed without | passed with | differ | express packets |\n| --- | --- | --- | --- | --- | --- | --- |\n"

// row returns the line of the table about a suite. Skipped cases are no cases.
func row(name, version string, without, with results, express counts) string {
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %v |\n", name, version,
		len(without)-without.count(skipped), without.count(passed), with.count(passed), len(differ(without, with)), express)
}

// Each suite has the same outcomes without and with SCON. The table is dist/peers/table.md,
// beside the logs.
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
	table := heading
	for _, s := range suites {
		if !names[s.name] {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			line := s.test(t, filepath.Join(dir, s.name))
			table += line
			t.Log(line)
		})
	}
	t.Log("\n" + table)
	if err := os.WriteFile(filepath.Join(dir, "table.md"), []byte(table), 0o644); err != nil {
		t.Error(err)
	}
}

// test runs a suite twice, with logs in LOGS-without and LOGS-with, and returns its line of
// the table.
func (s suite) test(t *testing.T, logs string) string {
	version, err := s.prepare(t)
	if without := new(missing); errors.As(err, &without) {
		return fmt.Sprintf("| %s | not run: %s | | | | | |\n", s.name, without)
	}
	if err != nil {
		t.Error(err)
		return fmt.Sprintf("| %s | not run: it could not be prepared | | | | | |\n", s.name)
	}
	var both [2]results
	var express counts
	for i, side := range []string{"without", "with"} {
		begin := time.Now()
		if s.guest != nil {
			both[i], express = s.guest(t, logs+"-"+side, side == "with")
		} else {
			h := newHost(t, logs+"-"+side, side == "with")
			both[i] = s.run(t, h)
			express = h.close()
		}
		if both[0].count(passed) == 0 {
			t.Errorf("no case passed without SCON: see %s-without", logs)
			return fmt.Sprintf("| %s | not run: no case passed without SCON | | | | | |\n", s.name)
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
	return row(s.name, version, both[0], both[1], express)
}
