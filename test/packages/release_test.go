package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository makes a git repository with the scripts and a changelog.
func repository(t *testing.T, changelog string) string {
	t.Helper()
	dir := t.TempDir()
	for _, script := range []string{"release.sh", "version.sh", "as-owner.sh", "debian-changelog.sh"} {
		text, err := os.ReadFile(filepath.Join(root, "scripts", script))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "scripts", script), string(text))
	}
	write(t, filepath.Join(dir, "CHANGELOG.md"), changelog)
	write(t, filepath.Join(dir, "VERSION"), "1.2.0\n")
	write(t, filepath.Join(dir, "packaging/helm/scon/Chart.yaml"), "version: 1.2.0\nappVersion: \"1.2.0\"\n")
	git(t, dir, "init", "--quiet")
	git(t, dir, "config", "user.name", "t") // a new system's git knows none
	git(t, dir, "config", "user.email", "t@t.example")
	commit(t, dir)
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@t.example"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-02-03T04:05:06Z")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v: %s", args, err, out)
	}
}

func commit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "add", "--all")
	git(t, dir, "commit", "--quiet", "--allow-empty", "--message", "all")
}

// script runs one of a repository's scripts and returns its output.
func script(t *testing.T, dir, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(filepath.Join("scripts", args[0]), args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=86400")
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// A release is refused before anything is run or tagged, and the message says why.
func TestReleaseRefuses(t *testing.T) {
	const ready = "## [1.2.0] - 2026-02-03\n"
	for name, c := range map[string]struct {
		changelog, version string
		prepare            func(dir string)
		want               string
	}{
		"version": {ready, "1.2", nil, `the version is "1.2": want three numbers`},
		"section": {"## [Unreleased]\n", "1.2.0", nil, "CHANGELOG.md has no section"},
		"another": {"## [1x2.0] - 2026-02-03\n", "1.2.0", nil, "CHANGELOG.md has no section"},
		"tag": {ready, "1.2.0", func(dir string) {
			git(t, dir, "tag", "v1.2.0")
			write(t, dir+"/CHANGELOG.md", ready+"more\n")
			commit(t, dir)
		}, "the tag v1.2.0 exists"},
		"file": {"## [1.3.0] - 2026-02-03\n", "1.3.0", nil, "the file VERSION has 1.2.0, not 1.3.0"},
		"chart": {"## [1.3.0] - 2026-02-03\n", "1.3.0", func(dir string) {
			write(t, dir+"/VERSION", "1.3.0\n")
			commit(t, dir)
		}, "Chart.yaml has another version than 1.3.0"},
		"changes":  {ready, "1.2.0", func(dir string) { write(t, dir+"/CHANGELOG.md", "") }, "not committed:  M CHANGELOG.md"},
		"new file": {ready, "1.2.0", func(dir string) { write(t, dir+"/new", "") }, "not committed: ?? new"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t, c.changelog)
			if c.prepare != nil {
				c.prepare(dir)
			}
			out, err := script(t, dir, "", "release.sh", c.version)
			if err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v: %q, want %q", err, out, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "dist")); err == nil {
				t.Error("it has begun")
			}
		})
	}
}

// Versions sort for dpkg in the order of their commits.
func TestVersion(t *testing.T) {
	dir := repository(t, "")
	var versions []string
	next := func() {
		out, err := script(t, dir, "", "version.sh")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		versions = append(versions, out)
	}
	next() // before the tag
	git(t, dir, "tag", "v1.2.0")
	next()
	commit(t, dir)
	next()
	write(t, filepath.Join(dir, "VERSION"), "1.3.0\n")
	commit(t, dir)
	next()
	write(t, filepath.Join(dir, "CHANGELOG.md"), "changed")
	next()
	if versions[0] != "1.2.0" || versions[1] != "1.2.0" || !strings.HasPrefix(versions[2], "1.2.0+1.") ||
		versions[3] != "1.3.0" || versions[4] != "1.3.0+dirty" {
		t.Errorf("versions %q", versions)
	}
	versions = versions[1:]
	for i, v := range versions[1:] {
		if err := exec.Command("dpkg", "--compare-versions", versions[i], "lt", v).Run(); err != nil {
			t.Errorf("%s is not before %s", versions[i], v)
		}
	}
}

// The chart has the version of these sources, and the changelog begins with it.
func TestOneVersion(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	version := strings.TrimSpace(read("VERSION"))
	for name, want := range map[string]string{
		"packaging/helm/scon/Chart.yaml": "\nversion: " + version + "\nappVersion: \"" + version + "\"\n",
		"CHANGELOG.md":                   "\n## [" + version + "] - ",
		"README.md":                      "scon_" + version + "-1_amd64.deb",
		"docs/tutorial.md":               "scon_" + version + "-1_amd64.deb",
		"docs/installing.md":             "scon_" + version + "-1_amd64.deb",
	} {
		if !strings.Contains(read(name), want) {
			t.Errorf("%s lacks %q", name, want)
		}
	}
}

// The changelog is Debian's: dpkg-parsechangelog, where it is installed, reads it.
func TestDebianChangelog(t *testing.T) {
	const changelog = "# Changelog\n\nWords.\n\n## [Unreleased]\n\n### Added\n\n- A thing\n  of two lines, of which the second one is as long as lines of Markdown may be, and becomes two.\n\n## [1.0.0] - 2026-02-03\n\n- First.\n"
	const want = `scon (1.1.0-1) unstable; urgency=medium

  [ Added ]
  * A thing
    of two lines, of which the second one is as long as lines of Markdown may
    be, and becomes two.

 -- SCON project <scon@scon-project.example>  Fri, 02 Jan 1970 00:00:00 +0000

scon (1.0.0-1) unstable; urgency=medium
  * First.

 -- SCON project <scon@scon-project.example>  Tue, 03 Feb 2026 00:00:00 +0000`
	dir := repository(t, "")
	got, err := script(t, dir, changelog, "debian-changelog.sh", "1.1.0-1")
	if err != nil || got != want {
		t.Errorf("%v:\n%s\nwant\n%s", err, got, want)
	}
}

// The table of results has each suite and guest once, whatever was in it before.
func TestKernelsTable(t *testing.T) {
	const log = `    --- PASS: TestTests/6.1/units (123.40s)
        --- PASS: TestTests/6.1/units/part (1.00s)
    --- FAIL: TestTests/6.12_without_BTF/daemon (1800.00s)
    --- PASS: TestExpress/6.1 (61.12s)
--- PASS: TestSRIOV (200.00s)
`
	const want = `before
<!-- results -->
| suite | 6.1 | 6.12 without BTF | 6.12 |
| --- | --- | --- | --- |
| units | 2 min | - | - |
| daemon | - | **failed** | - |
| express | 61 s | - | - |
| sriov | - | - | 3 min |
<!-- end of results -->
after
`
	dir := t.TempDir()
	logFile, document := filepath.Join(dir, "log"), filepath.Join(dir, "document")
	write(t, logFile, log)
	write(t, document, "before\n<!-- results -->\nold\n<!-- end of results -->\nafter\n")
	for range 2 {
		if out, err := script(t, root, "", "kernels-table.sh", logFile, document); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if got, err := os.ReadFile(document); err != nil || string(got) != want {
		t.Errorf("%v:\n%s\nwant\n%s", err, got, want)
	}
	write(t, logFile, "nothing\n")
	if out, err := script(t, root, "", "kernels-table.sh", logFile, document); err == nil || !strings.Contains(out, "has no results") {
		t.Errorf("%v: %s", err, out)
	}
}
