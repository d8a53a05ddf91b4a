package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/bench"
	"github.com/scon-project/scon/internal/figures"
)

func newBenchFiguresCommand() *cobra.Command {
	var quick, draw bool
	dir := "results"
	cmd := &cobra.Command{
		Use:   "figures [FIGURE...]",
		Short: "Reproduce the paper's figures with nginx, mosquitto and iperf3",
		Long: `Reproduce the paper's figures with nginx, mosquitto and iperf3.

Without a FIGURE, all of ` + strings.Join(figures.IDs(), ", ") + ` are measured, which takes about 13
minutes, or less than two with --quick. The results go to DIR as JSON, the plots
as PNG, and figures.md shows the paper's figures beside ours. Ctrl-C ends the run
and keeps the samples taken so far.`,
		ValidArgs: figures.IDs(),
		Args:      cobra.OnlyValidArgs,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if draw {
				return figures.Draw(dir)
			}
			o := figures.Options{IDs: ids, Effort: figures.Full, Dir: dir, Progress: bench.NewProgress(os.Stderr)}
			if quick {
				o.Effort = figures.Quick
			}
			return runFigures(cmd, o)
		},
	}
	cmd.Flags().BoolVar(&quick, "quick", false, "take fewer and shorter samples")
	cmd.Flags().BoolVar(&draw, "draw", false, "draw what is in DIR already and measure nothing")
	cmd.Flags().StringVar(&dir, "dir", dir, "`folder` of results, report and plots")
	return cmd
}

func runFigures(cmd *cobra.Command, o figures.Options) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := figures.Run(ctx, o)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted; what was measured so far is kept")
	}
	if _, statErr := os.Stat(filepath.Join(o.Dir, "figures.md")); statErr == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "report:", filepath.Join(o.Dir, "figures.md"))
	}
	return err
}
