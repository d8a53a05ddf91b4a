package clitest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// Terminal runs a program in a terminal of 80x24 characters. Its arguments are the
// command line, and then, in turn, text to wait for and keys to press; \t, \r, \e stand
// for tab, enter, and escape. The program has to end with status 0 after the last key. $TERM
// and $NO_COLOR are the script's.
func Terminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args)%2 == 0 {
		ts.Fatalf("usage: terminal COMMAND [TEXT KEYS ...]")
	}
	out, err := runInTerminal(ts, strings.Fields(args[0]), args[1:])
	ts.Check(os.WriteFile(ts.MkAbs("screen"), []byte(out), 0o600))
	if err != nil {
		ts.Fatalf("%v; the terminal got:\n%q", err, out)
	}
}

// terminalPatience bounds each step.
const terminalPatience = 20 * time.Second

func runInTerminal(ts *testscript.TestScript, command, steps []string) (string, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return "", err
	}
	defer master.Close()
	path, err := exec.LookPath(command[0])
	if err != nil {
		path = ts.Getenv("PATH")
		for dir := range strings.SplitSeq(path, ":") {
			if _, err := os.Stat(dir + "/" + command[0]); err == nil {
				path = dir + "/" + command[0]
				break
			}
		}
	}
	cmd := exec.Command(path, command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.Env = []string{"TERM=" + cmp.Or(ts.Getenv("TERM"), "xterm-256color"), "PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("WORK"), "WORK=" + ts.Getenv("WORK"), "NO_COLOR=" + ts.Getenv("NO_COLOR")}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	slave.Close()
	if err != nil {
		return "", fmt.Errorf("start %v: %w", command, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	got := &screen{from: master}
	for i := 0; i < len(steps) && err == nil; i += 2 {
		if err = got.wait(steps[i]); err == nil {
			_, err = master.WriteString(strings.NewReplacer(`\t`, "\t", `\r`, "\r", `\e`, "\x1b").Replace(steps[i+1]))
		}
	}
	if err == nil {
		err = got.wait("")
	}
	if err != nil {
		_ = cmd.Process.Kill()
	}
	if werr := <-ended; err == nil && werr != nil {
		err = fmt.Errorf("%v: %w", command, werr)
	}
	return got.all.String(), err
}

// screen collects what a program writes.
type screen struct {
	from *os.File
	all  strings.Builder
	new  string // since the last text that was waited for
}

// wait reads until a text arrives, or to the end for "".
func (s *screen) wait(text string) error {
	buf := make([]byte, 4096)
	if err := s.from.SetReadDeadline(time.Now().Add(terminalPatience)); err != nil {
		return err
	}
	for text == "" || !strings.Contains(s.new, text) {
		n, err := s.from.Read(buf)
		s.all.Write(buf[:n])
		s.new += string(buf[:n])
		if err != nil && text == "" && !os.IsTimeout(err) {
			return nil // the program has closed the terminal
		}
		if err != nil {
			return fmt.Errorf("wait for %q: %w", text, err)
		}
	}
	s.new = ""
	return nil
}

func openTerminal() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	return master, slave, nil
}
