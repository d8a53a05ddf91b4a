package launch

import (
	"io"
	"os"
	"os/exec"
)

// fileIO gives a container's process no input and a file for its output.
type fileIO struct{ *os.File }

func (fileIO) Close() error          { return nil } // the caller closes the file
func (fileIO) Stdin() io.WriteCloser { return nil }
func (fileIO) Stdout() io.ReadCloser { return nil }
func (fileIO) Stderr() io.ReadCloser { return nil }
func (f fileIO) Set(cmd *exec.Cmd)   { cmd.Stdout, cmd.Stderr = f.File, f.File }
