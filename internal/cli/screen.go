package cli

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
)

// Tone is what a color tells. A terminal may have none: it repeats what the text says.
type Tone int

// The tones.
const (
	Plain Tone = iota
	Head       // heads a table
	Good
	Warn
	Bad
	Faint  // less important
	Chosen // under the cursor
)

// SGR sequences of terminals: what begins a tone, and what ends all.
const (
	escape = "\x1b["
	bold   = escape + "1m"
	green  = escape + "32m"
	yellow = escape + "33m"
	red    = escape + "31m"
	faint  = escape + "2m"
	swap   = escape + "7m"
	end    = escape + "m"
)

var begins = [...]string{Head: bold, Good: green, Warn: yellow, Bad: red, Faint: faint, Chosen: swap}

// What replaces painted texts where a terminal has no colors, or no sequences at all.
var (
	colorless = strings.NewReplacer(green, "", yellow, "", red, "")
	bare      = strings.NewReplacer(bold, "", green, "", yellow, "", red, "", faint, "", swap, "", end, "")
)

// StateTone is that of a state of express.
func StateTone(state string) Tone {
	switch state {
	case api.StateActive:
		return Good
	case api.StatePaused:
		return Warn
	default:
		return Bad
	}
}

// FlowTone is that of a state of a connection.
func FlowTone(state string) Tone {
	switch state {
	case api.FlowExpress:
		return Good
	case api.FlowDiscard:
		return Bad
	default:
		return Warn
	}
}

// Paint gives a text its tone. Colored tells where it is shown.
func Paint(t Tone, text string) string {
	if t == Plain || text == "" {
		return text
	}
	return begins[t] + text + end
}

// Bare returns a painted text without its tones.
func Bare(text string) string { return bare.Replace(text) }

// Colored returns a writer that leaves out what out does not show: all tones if it is no
// terminal, and with TERM=dumb; colors with NO_COLOR, whatever its value is. A sequence
// comes in one Write.
func Colored(out io.Writer) io.Writer {
	switch term := os.Getenv("TERM"); {
	case !IsTerminal(out) || term == "" || term == "dumb":
		return replaced{out, bare}
	case os.Getenv("NO_COLOR") != "":
		return replaced{out, colorless}
	default:
		return out
	}
}

// replaced is a writer that writes something else.
type replaced struct {
	out io.Writer
	by  *strings.Replacer
}

func (r replaced) Write(text []byte) (int, error) {
	if _, err := r.by.WriteString(r.out, string(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// file is a stream that may be a terminal.
type file interface{ Fd() uintptr }

// usualWidth is that of a terminal whose width is not known.
const usualWidth = 80

// Width returns how many columns a line of out has: the terminal's, 80 if it is none.
func Width(out io.Writer) int {
	if f, ok := out.(file); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return usualWidth
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(file)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Wrap breaks a text behind a prefix into lines of a width: between words, and behind "->".
// Further lines are indented as far as the prefix is wide. A longer word stays whole.
func Wrap(prefix, text string, width int) string {
	indent := strings.Repeat(" ", Cells(prefix))
	line, empty := prefix, true
	var lines []string
	for _, word := range strings.Fields(text) {
		space := " "
		for _, piece := range pieces(word) {
			if empty {
				space = ""
			} else if Cells(line+space+piece) > width {
				lines = append(lines, line)
				line, space = indent, ""
			}
			line += space + piece
			space, empty = "", false
		}
	}
	return strings.Join(append(lines, line), "\n")
}
