package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Subjects of commits that are not on the main branch are checked, others are not.
func TestCommitSubjects(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(root, "scripts/check-commits.sh"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "scripts/check-commits.sh"), string(text))
	add := func(subject string) {
		t.Helper()
		git(t, dir, "commit", "--quiet", "--allow-empty", "--message", subject)
	}
	git(t, dir, "init", "--quiet", "--initial-branch", "main")
	add("Some old subject that nobody checks")
	git(t, dir, "switch", "--quiet", "--create", "topic")
	add("rules: follow meta oifgroup")
	add("libsconpipe: pass addresses")
	add("test/docs: embed what is read")
	if out, err := script(t, dir, "", "check-commits.sh"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for subject, want := range map[string]string{
		"rules: " + strings.Repeat("follow ", 10): "76 characters, 72 at most",
		"Follow rules":                 `want "area: what it does"`,
		"rules: Follow meta":           `want "area: what it does"`,
		"rules: followed by a set":     "",
		"rules: adds a set":            `"adds" is not in the imperative`,
		"rules: removed what is wrong": `"removed" is not in the imperative`,
		"rules: adding a set":          `"adding" is not in the imperative`,
	} {
		git(t, dir, "switch", "--quiet", "--force-create", "other", "topic")
		add(subject)
		if out, err := script(t, dir, "", "check-commits.sh"); want != "" && (err == nil || !strings.Contains(out, want)) {
			t.Errorf("%s: %v: %q, want %q", subject, err, out, want)
		}
	}
}
