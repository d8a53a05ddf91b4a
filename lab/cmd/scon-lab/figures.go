package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/figures"
)

func newBenchFiguresCommand() *cobra.Command {
	var quick, draw bool
	dir := "results"
	cmd := &cobra.Command{
		Use:   "figures [FIGURE...]",
		Short: "Reproduce the paper's figures with nginx, mosquitto and iperf3",
		Long: `Reproduce the paper's figures with nginx, mosquitto and iperf3.

Without FIGURE, this measures all of ` + strings.Join(figures.IDs(), ", ") + ` in about half an
hour, or in less than two minutes with --quick. It writes results to DIR as JSON, plots as
PNG, and figures.md, which shows the paper's figures beside the measured ones. Ctrl-C
ends the run and keeps the samples taken so far.`,
		ValidArgs: figures.IDs(),
		Args:      knownFigures,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if draw && (quick || len(ids) > 0) {
				return cli.Usagef(cmd, "--draw draws all results in DIR: it takes no figure and no --quick")
			}
			if draw {
				return figures.Draw(dir)
			}
			o := figures.Options{IDs: ids, Effort: figures.Full, Dir: dir, Progress: cli.NewProgress(os.Stderr)}
			if quick {
				o.Effort = figures.Quick
			}
			return runFigures(cmd, o)
		},
	}
	cmd.Flags().BoolVar(&quick, "quick", false, "take fewer and shorter samples")
	cmd.Flags().BoolVar(&draw, "draw", false, "draw the results in DIR without measuring")
	cmd.Flags().StringVar(&dir, "dir", dir, "`folder` of results, report and plots")
	return cmd
}

// knownFigures refuses unknown figures.
func knownFigures(cmd *cobra.Command, ids []string) error {
	for _, id := range ids {
		if !slices.Contains(figures.IDs(), id) {
			return cli.Usagef(cmd, "figure %q: want %s", id, strings.Join(figures.IDs(), ", "))
		}
	}
	return nil
}

func runFigures(cmd *cobra.Command, o figures.Options) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := figures.Run(ctx, o)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; the samples taken so far are kept")
	}
	if _, statErr := os.Stat(filepath.Join(o.Dir, "figures.md")); statErr == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "report:", filepath.Join(o.Dir, "figures.md"))
	}
	return err
}
