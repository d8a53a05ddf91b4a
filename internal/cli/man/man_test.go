package man

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every key of the settings has a paragraph with its default, and man renders the page
// without a warning.
func TestSettings(t *testing.T) {
	yaml, err := os.ReadFile("../../../packaging/scon.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Settings(yaml, dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "scon.yaml.5"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		".B bridges: auto\nBridges whose container ports are hooked",
		".SS startup\nContainers' networks",
		".B startup.limits.timeout: 5s\n",
		".SH SETTINGS\n",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	for line := range strings.Lines(string(yaml)) {
		if key, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(key, "#") && !strings.Contains(string(page), key) {
			t.Errorf("key %q has no paragraph", key)
		}
	}
	renders(t, filepath.Join(dir, "scon.yaml.5"))

	if err := Settings([]byte("# a\nbridges auto\n"), dir); err == nil || !strings.Contains(err.Error(), "scon.yaml:2: ") {
		t.Errorf("a line without a colon: %v", err)
	}
	if err := Settings([]byte("key: 1\n# .TH \\ forged\nother: 2\n"), dir); err != nil {
		t.Fatal(err)
	}
	renders(t, filepath.Join(dir, "scon.yaml.5"))
}

// Commands that are hidden or left out have no page.
func TestPages(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "scon", Short: "Do", Long: "Do what is asked.\n\n  a table\n  of two lines"}
	for _, name := range []string{"status", "bench", "cni"} {
		root.AddCommand(&cobra.Command{Use: name, Short: "Show " + name, Run: run, Hidden: name == "cni"})
	}
	dir := t.TempDir()
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	err := Pages(root, dir, func(cmd *cobra.Command) bool { return cmd.Name() == "scon" || cmd.Name() == "status" })
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(pages) != 2 || filepath.Base(pages[0]) != "scon-status.8" || filepath.Base(pages[1]) != "scon.8" {
		t.Errorf("wrote %q", pages)
	}
	for _, page := range pages {
		renders(t, page)
		if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "Jan 1970") {
			t.Errorf("%s is not dated by SOURCE_DATE_EPOCH: %v", page, err)
		}
	}
}

// The page of the root lists its commands by their groups, its files and exit statuses, and
// all pages name those beside them.
func TestSections(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "scon", Short: "Do", Example: "  scon status"}
	root.AddGroup(&cobra.Group{ID: "see", Title: "See what happens:"})
	for _, name := range []string{"status", "top"} {
		root.AddCommand(&cobra.Command{Use: name, Short: "Show " + name, Run: run, GroupID: "see"})
	}
	dir := t.TempDir()
	if err := Pages(root, dir, func(cmd *cobra.Command) bool {
		return cmd.Name() != "help" && !strings.Contains(cmd.CommandPath(), "completion")
	}); err != nil {
		t.Fatal(err)
	}
	for page, wants := range map[string][]string{
		"scon.8": {".SH COMMANDS\n.SS See what happens\n.TP\n.B status\nShow status\n", ".SH FILES\n.TP\n.B /etc/scon/scon.yaml\n",
			".SH ENVIRONMENT\n.TP\n.B NO_COLOR\n", ".SH EXIT STATUS\n.TP\n.B 0\n", ".SH EXAMPLE\n", `\fBscon-status(8)\fP`, `\fBscon.yaml(5)\fP`},
		"scon-status.8": {".SH EXIT STATUS\n", ".SH SEE ALSO\n\\fBscon(8)\\fP, \\fBscon-top(8)\\fP, \\fBscon.yaml(5)\\fP\n"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s lacks %q:\n%s", page, want, text)
			}
		}
		renders(t, filepath.Join(dir, page))
	}
}

// renders tests that groff, where it is installed, has nothing to complain of.
func renders(t *testing.T, page string) {
	t.Helper()
	groff, err := exec.LookPath("groff")
	if err != nil {
		return
	}
	out, err := exec.Command(groff, "-man", "-Tutf8", "-z", "-ww", page).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%s: %v: %s", page, err, out)
	}
}
