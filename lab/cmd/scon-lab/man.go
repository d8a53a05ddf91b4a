//go:build man

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/cli/man"
)

// main writes the man pages of scon-lab's commands into the directory that is its
// argument, instead of running it.
func main() {
	if err := man.Pages(newTool(io.Discard, io.Discard).newRootCommand(), os.Args[1], cli.IsLabCommand); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
