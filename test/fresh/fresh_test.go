// Package fresh runs what README says about the sources in systems that have nothing but
// what README names, as a user with sudo, as root, and as a user without sudo.
package fresh

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/system"
)

var (
	full    = flag.Bool("full", false, "make the systems and run the steps: hours")
	systems = flag.String("systems", "bookworm,trixie,testing", "Debian's suites")
	users   = flag.String("users", "user,root,plain", "who runs the steps: plain has no sudo")
	only    = flag.String("steps", "build,install,demo,test", "the steps")
)

// prerequisites are the packages that README names.
const prerequisites = "sudo,git,make,golang-go,ca-certificates"

// steps are README's lines, in order.
var steps = []struct {
	name, line string
	root       bool // by sudo
}{
	{"build", "make build && bin/scon version", false},
	{"install", "sudo make install && scon version", true},
	{"demo", "make demo", true},
	{"test", "make test", true},
}

// script returns what runs a user's steps, and their names. After each step, no file of
// the user's is another's, and the size of the user's files is that of the sources, what
// was built, and Go's caches.
func script(user string) (names []string, script string) {
	script = "git -c init.defaultBranch=main clone --quiet -c advice.detachedHead=false /srv/scon.bundle scon && cd scon || exit 1\n"
	for _, s := range steps {
		if slices.Contains(strings.Split(*only, ","), s.name) && (user != "plain" || !s.root) {
			names = append(names, s.name)
			script += fmt.Sprintf("echo; echo '=== begin %[1]s'; (%[2]s) 2>&1; status=$?\n"+
				"find ~ ! -user %[3]s | sed 's/^/not of %[3]s: /' | grep . && status=1\n"+
				"echo; echo \"=== end %[1]s $status $(du -sm ~ | cut -f1)\"\n", s.name, s.line, user)
		}
	}
	return names, script
}

// What the systems have is what README names, and sudo.
func TestPrerequisites(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	line := "sudo apt install " + strings.ReplaceAll(strings.TrimPrefix(prerequisites, "sudo,"), ",", " ") + "\n"
	if !strings.Contains(string(text), line) {
		t.Errorf("README.md has no line %q", line)
	}
}

// create is system.Create: the sources may be a user's.
func create(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := system.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Each step passes in each system, for each user. The table is dist/fresh/table.md, beside the logs.
func TestFresh(t *testing.T) {
	if !*full {
		t.Skip("the full form: make test-fresh")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "dist", "fresh")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	table := create(t, filepath.Join(dir, "table.md"))
	defer table.Close()
	fmt.Fprintln(table, "| system | user | step | time | home, MB | result |\n| --- | --- | --- | --- | --- | --- |")
	all := len(strings.Split(*systems, ",")) * len(strings.Split(*users, ","))
	done, begun := 0, time.Now()
	for suite := range strings.SplitSeq(*systems, ",") {
		for user := range strings.SplitSeq(*users, ",") {
			t.Run(suite+"/"+user, func(t *testing.T) {
				names, script := script(user)
				archive, err := system.Archive(dir, suite, prerequisites)
				if err != nil {
					t.Fatal(err)
				}
				passed := run(t, table, filepath.Join(dir, suite+"-"+user), archive, root, suite, user, script)
				if !slices.Equal(passed, names) {
					t.Errorf("of the steps %v only %v passed", names, passed)
				}
			})
			done++
			left := time.Since(begun) / time.Duration(done) * time.Duration(all-done)
			t.Logf("%d of %d done, about %v left", done, all, left.Round(time.Minute))
		}
	}
}

// run runs the script in a new system, with the log of each step in LOGS-STEP.log, and
// returns the steps that passed.
func run(t *testing.T, table *os.File, logs, archive, root, suite, user, script string) (passed []string) {
	t.Helper()
	cmd := system.Command(archive, root, user, script)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log *os.File
	begun := time.Now()
	for lines := bufio.NewReader(stdout); ; {
		line, err := lines.ReadString('\n')
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "=== begin ") && len(words) == 3:
			begun = time.Now()
			log = create(t, logs+"-"+words[2]+".log")
			t.Logf("%s begins; log: %s", words[2], log.Name())
		case strings.HasPrefix(line, "=== end ") && len(words) == 5 && log != nil:
			log.Close()
			took, result := time.Since(begun).Round(time.Second), "passed"
			if words[3] != "0" {
				result = "**failed**"
				t.Errorf("%s: exit status %s; log: %s", words[2], words[3], log.Name())
			} else {
				passed = append(passed, words[2])
			}
			fmt.Fprintf(table, "| %s | %s | %s | %v | %s | %s |\n", suite, user, words[2], took, words[4], result)
			t.Logf("%s %s after %v", words[2], result, took)
			log = nil
		case log != nil:
			_, _ = log.WriteString(line)
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the system's script: %v", err)
	}
	return passed
}
