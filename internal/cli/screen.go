package cli

import (
	"io"
	"os"
	"strings"

	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
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
	Faint // less important
)

var styles = [...]ansi.Style{
	Head:  ansi.Style{}.Bold(),
	Good:  ansi.Style{}.ForegroundColor(ansi.Green),
	Warn:  ansi.Style{}.ForegroundColor(ansi.Yellow),
	Bad:   ansi.Style{}.ForegroundColor(ansi.Red),
	Faint: ansi.Style{}.Faint(),
}

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
	return styles[t].Styled(text)
}

// Profile returns which colors out shows: none if it is no terminal, with TERM=dumb, and
// with NO_COLOR, whatever its value is.
func Profile(out io.Writer) colorprofile.Profile {
	if !IsTerminal(out) {
		return colorprofile.NoTTY
	}
	profile := colorprofile.Env(os.Environ())
	if os.Getenv("NO_COLOR") != "" {
		return min(profile, colorprofile.ASCII)
	}
	return profile
}

// Colored returns a writer that leaves out the colors that out does not show.
func Colored(out io.Writer) io.Writer {
	return &colorprofile.Writer{Forward: out, Profile: Profile(out)}
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
	indent := strings.Repeat(" ", ansi.StringWidth(prefix))
	line, empty := prefix, true
	var lines []string
	for _, word := range strings.Fields(text) {
		space := " "
		for _, piece := range pieces(word) {
			if empty {
				space = ""
			} else if ansi.StringWidth(line+space+piece) > width {
				lines = append(lines, line)
				line, space = indent, ""
			}
			line += space + piece
			space, empty = "", false
		}
	}
	return strings.Join(append(lines, line), "\n")
}
