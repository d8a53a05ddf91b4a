package differential

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// shell is a long-running sh(1) in device with the mounts of the world's
// daemon, so that a case starts only the tools that it uses.
type shell struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

func openShell(b *scontest.Bed) (*shell, error) {
	s := &shell{cmd: exec.Command("nsenter", "--mount="+b.Mounts(), "--net="+b.Node(lab.Device), "sh")}
	var err error
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a shell in device: %w", err)
	}
	return s, nil
}

func (s *shell) close() {
	s.stdin.Close()
	_ = s.cmd.Wait()
}

// done precedes the exit status behind a script's output.
const done = "--done-- "

// run runs a script up to the first command that fails.
func (s *shell) run(script string) error {
	_, err := s.output(script)
	return err
}

// output does so, and returns what it has printed.
func (s *shell) output(script string) (string, error) {
	if script == "" {
		return "", nil
	}
	if _, err := fmt.Fprintf(s.stdin, "( set -e\n%s\n) 2>&1\nprintf '\\n%s%%s\\n' $?\n", script, done); err != nil {
		return "", fmt.Errorf("write a script to the shell in device: %w", err)
	}
	var printed strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("the shell in device exited: %w: %s", err, &printed)
		}
		status, ended := strings.CutPrefix(line, done)
		if !ended {
			printed.WriteString(line)
			continue
		}
		if status != "0\n" {
			return "", fmt.Errorf("exit status %s of the script\n%s\noutput:\n%s", strings.TrimSpace(status), script, &printed)
		}
		return printed.String(), nil
	}
}
