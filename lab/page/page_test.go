package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var example = Page{Title: `<b>"web"</b>`, Sections: []Section{
	{Title: "<i>", SVG: "<?xml version=\"1.0\"?>\n<svg id=\"a\"></svg>", Text: "a < b"},
	{Title: "Own", SVG: `<svg id="b"><style>@media (prefers-color-scheme: dark) {}</style></svg>`},
}}

// A page is one document: it loads nothing, and all text stays text.
func TestHTML(t *testing.T) {
	got := example.HTML()
	for _, part := range []string{
		"default-src 'none'; style-src 'unsafe-inline'",
		"<title>&lt;b&gt;&#34;web&#34;&lt;/b&gt;</title>", "<h1>&lt;b&gt;", "<h2>&lt;i&gt;</h2>", "<pre>a &lt; b</pre>",
		`<div class="paper"><svg id="a"></svg></div>`, "<section><h2>Own</h2>\n<svg id=\"b\">",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("no %s in\n%s", part, got)
		}
	}
	for _, part := range []string{"<?xml", "<script", "http://", "https://", "<b>", "%!"} {
		if strings.Contains(got, part) {
			t.Errorf("%s in\n%s", part, got)
		}
	}
}

// The desktop opens the page; without one, or without a browser, its path is printed.
func TestOpen(t *testing.T) {
	const printed = "Open this page in a browser: "
	for name, c := range map[string]struct {
		display, program string
		opened           bool
	}{
		"no desktop":  {"", "#!/bin/sh\nexit 0\n", false},
		"a desktop":   {":0", "#!/bin/sh\ngrep -q doctype \"$1\"\n", true},
		"no browser":  {":0", "#!/bin/sh\nexit 3\n", false},
		"no xdg-open": {":0", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			if c.program != "" {
				if err := os.WriteFile(filepath.Join(bin, "xdg-open"), []byte(c.program), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", bin+":/bin:/usr/bin")
			if c.program == "" {
				t.Setenv("PATH", bin)
			}
			t.Setenv("TMPDIR", t.TempDir())
			t.Setenv("DISPLAY", c.display)
			t.Setenv("WAYLAND_DISPLAY", "")
			var out strings.Builder
			if err := example.Open("web", &out); err != nil {
				t.Fatal(err)
			}
			path, said := strings.CutPrefix(out.String(), printed)
			if said == c.opened {
				t.Fatalf("it says %q", &out)
			}
			if !said {
				return
			}
			if content, err := os.ReadFile(strings.TrimSpace(path)); err != nil || string(content) != example.HTML() {
				t.Errorf("%v, %s", err, content)
			}
		})
	}
}
