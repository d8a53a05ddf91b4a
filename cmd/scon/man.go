//go:build man

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/cli/man"
)

// main writes the man pages of scon and of scon.yaml into the directory that is its
// argument, instead of running scon. scon-lab writes those of its commands.
func main() {
	dir := os.Args[1]
	err := man.Pages(newTool(io.Discard, io.Discard).newRootCommand(), dir, func(cmd *cobra.Command) bool {
		return !cli.IsLabCommand(cmd)
	})
	if err == nil {
		err = settingsPage(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func settingsPage(dir string) error {
	yaml, err := os.ReadFile("packaging/scon.yaml")
	if err != nil {
		return err
	}
	return man.Settings(yaml, dir)
}
