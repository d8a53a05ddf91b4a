package main

import "github.com/spf13/cobra"

func (t *tool) newStartupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "startup",
		Short: "Start containers' networks, measured and tuned",
	}
	cmd.AddCommand(t.newStartupBenchCommand())
	return cmd
}
