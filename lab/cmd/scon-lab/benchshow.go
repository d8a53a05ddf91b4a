package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/lab/appbench"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/latency"
	"github.com/scon-project/scon/lab/pipebench"
	"github.com/scon-project/scon/lab/startbench"
)

// otherExperiments are those besides package bench's.
func otherExperiments() []bench.Experiment {
	return slices.Concat(figures.Experiments(), pipebench.Experiments(), []bench.Experiment{startbench.Experiment(), appbench.Experiment()})
}

// newBenchShowCommand prints the tables that documents show.
func newBenchShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE [NAME]",
		Short: "Print the table of a result that --json wrote, or those of a file of summaries",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			summaries, err := bench.ReadSummaries(args[0])
			if err == nil {
				return showSummaries(cmd.OutOrStdout(), summaries, args[1:])
			}
			if len(args) > 1 {
				return err
			}
			r, err := bench.ReadResult(args[0], otherExperiments()...)
			if err != nil {
				return err
			}
			return r.WriteTable(cmd.OutOrStdout())
		},
	}
}

// showSummaries prints the tables of some summaries; no name means all, each
// below its name.
func showSummaries(out io.Writer, summaries bench.Summaries, names []string) error {
	heading := "%.0s"
	if len(names) == 0 {
		names, heading = summaries.Names(), "\n%s\n\n"
	}
	for _, name := range names {
		r, err := readSummary(summaries, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, heading, name)
		if err := r.WriteTable(out); err != nil {
			return err
		}
	}
	return nil
}

// summarized is a result of scon bench or scon latency.
type summarized interface {
	WriteTable(io.Writer) error
	Summarize()
}

func readSummary(summaries bench.Summaries, name string) (summarized, error) {
	if r, err := latency.Parse(summaries[name]); err == nil {
		return r, nil
	}
	return summaries.Result(name, otherExperiments()...)
}

// newBenchSummaryCommand makes what is committed of results.
func newBenchSummaryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "summary SUMMARIES FILE...",
		Short: "Keep the summaries of results, without samples, in the file SUMMARIES",
		Long: `Keep the summaries of results, without samples, in the file SUMMARIES.

Each FILE is a result that --json of scon bench, scon startup bench, scon pipe
bench or scon latency wrote; its name without .json names its summary. Others that
SUMMARIES has are kept. Tables and charts of a summary are those of its result.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			summaries := bench.Summaries{}
			for _, path := range args[1:] {
				r, err := readAny(path)
				if err != nil {
					return err
				}
				r.Summarize()
				text, err := json.Marshal(r)
				if err != nil {
					return fmt.Errorf("summarize %s: %w", path, err)
				}
				summaries[strings.TrimSuffix(filepath.Base(path), ".json")] = text
			}
			return summaries.Update(args[0])
		},
	}
}

func readAny(path string) (summarized, error) {
	if r, err := latency.ReadFile(path); err == nil {
		return r, nil
	}
	return bench.ReadResult(path, otherExperiments()...)
}
