package main

import (
	"io"
	"testing"

	"github.com/spf13/cobra"
)

// TestBenchDraws holds that each bench that measures in rounds draws its metrics.
func TestBenchDraws(t *testing.T) {
	measuring := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		flags := cmd.Flags()
		bench := cmd.Name() == "bench" || cmd.Parent() != nil && cmd.Parent().Name() == "bench"
		if bench && flags.Lookup("rounds") != nil && flags.Lookup("json") != nil && !cmd.Hidden {
			measuring++
			if flags.Lookup("plots") == nil {
				t.Errorf("%s draws nothing", cmd.CommandPath())
			}
		}
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(newTool(io.Discard, io.Discard).newRootCommand())
	if measuring < 9 {
		t.Errorf("%d commands measure in rounds, want at least 9", measuring)
	}
}
