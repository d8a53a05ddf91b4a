// Package page writes results as pages for a browser: one file with all its pictures,
// without scripts and without addresses of others.
package page

import (
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/lab/output"
)

// Page is a document with sections.
type Page struct {
	Title    string
	Sections []Section
}

// Section is a heading with a picture, a text of fixed width, or both. SVG is trusted:
// whoever draws it escapes what others have named.
type Section struct {
	Title, SVG, Text string
}

// head forbids the page to load anything, and follows the colours of the system.
const head = `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; background: #fff; color: #1f2328 }
svg { width: 100%%; height: auto }
.paper { background: #fff; padding: .5rem; max-width: 45rem }
pre { overflow-x: auto; font-size: 13px; line-height: 1.35 }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } }
</style></head><body>
<h1>%[1]s</h1>
`

// HTML returns the page.
func (p Page) HTML() string {
	var b strings.Builder
	fmt.Fprintf(&b, head, html.EscapeString(p.Title))
	for _, s := range p.Sections {
		fmt.Fprintf(&b, "<section><h2>%s</h2>\n", html.EscapeString(s.Title))
		if i := strings.Index(s.SVG, "<svg"); i >= 0 {
			b.WriteString(paper(s.SVG[i:]))
		}
		if s.Text != "" {
			fmt.Fprintf(&b, "<pre>%s</pre>\n", html.EscapeString(s.Text))
		}
		b.WriteString("</section>\n")
	}
	b.WriteString("</body></html>\n")
	return b.String()
}

// paper gives a picture that does not know of dark pages a white one below it.
func paper(svg string) string {
	if strings.Contains(svg, "prefers-color-scheme") {
		return svg
	}
	return `<div class="paper">` + svg + "</div>\n"
}

// Open writes the page to a new file of the temporary directory and has the desktop open
// it. Where there is no desktop, as over ssh, it prints the file's path.
func (p Page) Open(name string, out io.Writer) error {
	dir, err := os.MkdirTemp("", "scon-")
	if err != nil {
		return fmt.Errorf("make a folder for the page: %w", err)
	}
	path := filepath.Join(dir, name+".html")
	if err := output.Write(path, []byte(p.HTML())); err != nil {
		return err
	}
	if hasDesktop() && exec.Command("xdg-open", path).Run() == nil {
		return nil
	}
	_, err = fmt.Fprintf(out, "Open this page in a browser: %s\n", path)
	return err
}

func hasDesktop() bool { return os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "" }
