// Package results has the committed results that the program itself refers to.
package results

import _ "embed"

// Advice is what `scon pin advise --json` wrote on the machine that it names.
//
//go:embed pin-advise.json
var Advice []byte
