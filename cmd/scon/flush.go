package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (t *tool) newFlushCommand() *cobra.Command {
	var container string
	cmd := &cobra.Command{
		Use:   "flush",
		Short: "Drop cached flows; they are relearned",
		RunE: func(*cobra.Command, []string) error {
			n, err := t.client().Flush(container)
			if err != nil {
				return err
			}
			what := "connections"
			if n == 1 {
				what = "connection"
			}
			_, err = fmt.Fprintf(t.stdout, "Flushed %d %s of %s.\n", n, what, whose(container))
			return err
		},
	}
	addContainer(cmd, &container)
	return cmd
}

// whose names the containers that a command applies to.
func whose(container string) string {
	if container == "" {
		return "all containers"
	}
	return container
}
