package top

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cli"
)

// What a terminal is told, as xterm and its descendants understand it.
const (
	enter = "\x1b[?1049h" + // the screen beside that of the shell
		"\x1b[?25l" + // no cursor
		"\x1b[?2004h" + // what is pasted has marks around it
		"\x1b[22;2t\x1b]2;scon top\a" // keep the window's title, and set another
	leave = "\x1b[23;2t\x1b[?2004l\x1b[?25h\x1b[?1049l"

	begin = "\x1b[?2026h\x1b[H" // show nothing until end; the first line
	blank = "\x1b[K"            // the line
	end   = "\x1b[?2026l"
)

// terminal is that of a view: it gives keys as they are pressed, and shows a screen beside the
// shell's.
type terminal struct {
	in, out *os.File
	was     *unix.Termios
	shown   string // "" if the terminal may have lost it
}

// openTerminal takes the terminal over. The caller closes it.
func openTerminal(in, out *os.File) (*terminal, error) {
	was, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the terminal's settings: %w", err)
	}
	raw := *was
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("set the terminal: %w", err)
	}
	t := &terminal{in: in, out: out, was: was}
	if _, err := io.WriteString(out, enter); err != nil {
		t.close()
		return nil, fmt.Errorf("write to the terminal: %w", err)
	}
	return t, nil
}

// close gives the terminal back as it was.
func (t *terminal) close() {
	_, _ = io.WriteString(t.out, leave) // it may have gone
	_ = unix.IoctlSetTermios(int(t.in.Fd()), unix.TCSETSF, t.was)
}

// size returns the terminal's columns and lines, and has all of them drawn again. ok is false
// if the terminal does not know them.
func (t *terminal) size() (width, height int, ok bool) {
	size, err := unix.IoctlGetWinsize(int(t.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 0, 0, false
	}
	t.shown = ""
	return int(size.Col), int(size.Row), true
}

// draw shows as many lines as the terminal has, none of which is wider.
func (t *terminal) draw(lines []string) error {
	screen := begin + blank + strings.Join(lines, "\r\n"+blank) + end
	if screen == t.shown {
		return nil
	}
	t.shown = screen
	if _, err := io.WriteString(cli.Colored(t.out), screen); err != nil {
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}

// read sends what is typed until the terminal ends, then closes typed.
func (t *terminal) read(typed chan<- []byte) {
	defer close(typed)
	for {
		b := make([]byte, 1024)
		n, err := t.in.Read(b)
		if n > 0 {
			typed <- b[:n]
		}
		if err != nil {
			return
		}
	}
}
