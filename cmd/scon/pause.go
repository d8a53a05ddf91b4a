package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (t *tool) newPauseCommand() *cobra.Command {
	var container string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Disable the express path until 'scon resume'",
		RunE: func(*cobra.Command, []string) error {
			if err := t.client().Pause(container); err != nil {
				return err
			}
			resume := "scon resume"
			if container != "" {
				resume += " --container " + container
			}
			_, err := fmt.Fprintf(t.stdout, "Paused %s: every packet goes regular until '%s'.\n", whose(container), resume)
			return err
		},
	}
	addContainer(cmd, &container)
	return cmd
}
