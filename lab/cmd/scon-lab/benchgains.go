package main

import (
	"github.com/spf13/cobra"

	"github.com/scon-project/scon/lab/gains"
)

// newBenchGainsCommand draws the chart of README.
func newBenchGainsCommand() *cobra.Command {
	var results string
	cmd := &cobra.Command{
		Use:   "gains FILE",
		Short: "Draw what SCON gains into FILE, as SVG, from summaries of app, startup bench and pipe bench",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := gains.Read(results, otherExperiments()...)
			if err != nil {
				return err
			}
			return c.WriteSVG(args[0])
		},
	}
	cmd.Flags().StringVar(&results, "results", "results", "`folder` with app.json, startup.json and pipe.json, which 'bench summary' wrote")
	return cmd
}
