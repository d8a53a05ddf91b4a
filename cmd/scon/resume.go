package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/plain"
)

// stillPaused says what is paused after a container, or all, was resumed: all and each have
// a pause of their own.
func stillPaused(s api.Status, container string) string {
	if container != "" {
		if s.State == api.StatePaused {
			return ", but SCON is paused: 'scon resume' ends it"
		}
		return ""
	}
	var names []string
	for _, c := range s.Containers {
		if c.Paused {
			names = append(names, plain.Text(cmp.Or(c.Name, c.ID, c.Dev)))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(", but for %s: 'scon resume --container NAME' resumes one", few(names))
}

func (t *tool) newResumeCommand() *cobra.Command {
	var container string
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Resume express forwarding",
		RunE: func(*cobra.Command, []string) error {
			if err := t.client().Resume(container); err != nil {
				return err
			}
			s, err := t.client().Status()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(t.stdout, "Resumed %s%s.\n", whose(container), stillPaused(s, container))
			return err
		},
	}
	addContainer(cmd, &container)
	return cmd
}
