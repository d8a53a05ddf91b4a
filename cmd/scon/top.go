package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/internal/top"
)

// Bounds of the interval of scon top.
const (
	leastInterval = 100 * time.Millisecond
	mostInterval  = time.Hour
)

func (t *tool) newTopCommand() *cobra.Command {
	var (
		asJSON, once bool
		filter       string
		interval     = time.Second
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show containers and connections live, with their packets and bytes per second",
		Long: `Show containers and connections live, with their packets and bytes per second,
why packets go regular, and what changes of rules and devices do to them.

Rates are those of the interval between two looks at the daemon. The key '?' lists the
keys. With --once the command prints one interval and ends; with --json it prints a
line with a JSON document for each interval.

A filter is words that all have to match, anywhere in a row or after a key:
container:web, peer:10.0.0.1, reason:no_entry, way:bridged, proto:udp, direction:in.`,
		Example: "  scon top --filter container:web\n  scon top --json | jq .express.packets_per_s",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < leastInterval || interval > mostInterval {
				return cli.Usagef(cmd, "--interval is %v, it must be %v to %v", interval, leastInterval, mostInterval)
			}
			selected, err := live.ParseFilter(filter)
			if err != nil {
				return cli.Usagef(cmd, "--filter: %v", err)
			}
			switch {
			case asJSON:
				return t.follow(interval, once, func(v live.View) error {
					selected.Apply(&v)
					return cli.PrintLine(t.stdout, v)
				})
			case once:
				return t.follow(interval, once, func(v live.View) error {
					selected.Apply(&v)
					return top.Write(t.stdout, v)
				})
			case !cli.IsTerminal(t.stdout) || !cli.IsTerminal(os.Stdin):
				return errors.New("standard input and output are not a terminal; use --once or --json")
			}
			m, err := top.New(t.client(), top.Options{Interval: interval, Filter: filter, Explain: explanationText})
			if err != nil {
				return err
			}
			return m.Run()
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&once, "once", false, "print one interval and end")
	cmd.Flags().StringVar(&filter, "filter", "", "show only the containers and connections that match these `words`")
	cmd.Flags().DurationVar(&interval, "interval", interval, "`time` between two looks")
	return cmd
}

// follow prints what happens in each interval, until SIGINT or SIGTERM, or once. A daemon
// that does not answer later on, as during an upgrade, is asked again.
func (t *tool) follow(interval time.Duration, once bool, print func(live.View) error) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(stop)
	was, err := live.Take(t.client())
	if err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		is, err := live.Take(t.client())
		switch {
		case err != nil && once:
			return err
		case err != nil && !silent:
			fmt.Fprintf(t.stderr, "scon: %v\n", err)
		case err == nil:
			if err := print(live.Between(was, is)); err != nil || once {
				return err
			}
			was = is
		}
		silent = err != nil
	}
}
