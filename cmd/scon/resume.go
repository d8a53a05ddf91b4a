package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
)

func (t *tool) newResumeCommand() *cobra.Command {
	var container string
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume express forwarding",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := t.client().Resume(container); err != nil {
				return err
			}
			_, err := fmt.Fprintf(t.stdout, "Resumed %s.\n", whose(container))
			return err
		},
	}
	addContainerFlag(cmd, &container)
	return cmd
}
