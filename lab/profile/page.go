package profile

import (
	"strings"

	"github.com/scon-project/scon/lab/page"
)

// Page returns the profile for a browser.
func (p *Profile) Page() page.Page {
	var table strings.Builder
	_ = p.WriteTable(&table) // to memory
	title := "scon profile"
	if p.Container != "" {
		title += ": " + p.Container
	}
	return page.Page{Title: title, Sections: []page.Section{
		{Title: "The way of a packet", SVG: p.SVG()},
		{Title: "Layers and rules", Text: table.String()},
	}}
}
