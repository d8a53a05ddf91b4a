package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/plain"
)

func (t *tool) newExplainCommand() *cobra.Command {
	var asJSON, wide bool
	cmd := &cobra.Command{
		Use:   "explain FLOW|CONTAINER",
		Short: "Explain why a connection uses, or does not use, the express path",
		Long: `Explain why a connection uses, or does not use, the express path.

A FLOW is one end of a connection, or both, with or without the protocol:

  172.17.0.2                            all connections of that address
  172.17.0.2:43512                      one end, source or destination
  udp:10.0.0.1:53                       the same, UDP only
  tcp:172.17.0.2:43512->10.0.0.1:80     source and destination

Addresses before and after NAT match. An IPv6 address with a port is written in
brackets. Any other word is a container's name or ID.`,
		Example: "  scon explain web\n  scon explain 'tcp:172.17.0.2:43512->10.0.0.1:80'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef(cmd, "takes one flow or container, got %d arguments", len(args))
			}
			if _, err := api.ParseSubject(args[0]); err != nil {
				return cli.Usagef(cmd, "%v", err)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			e, err := t.client().Explain(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return t.printJSON(e)
			}
			return t.printExplanation(e, wide)
		},
	}
	cmd.ValidArgsFunction = cli.OneContainer
	cli.AddJSONFlag(cmd, &asJSON)
	addWideFlag(cmd, &wide)
	return cmd
}

func (t *tool) printExplanation(e api.Explanation, wide bool) error {
	width := cli.NoWidth
	if !wide {
		width = cli.Width(t.stdout)
	}
	if _, err := io.WriteString(t.stdout, explanationText(e, width)); err != nil || len(e.Flows) == 0 {
		return err
	}
	s, err := t.client().Status()
	if err != nil {
		return err
	}
	fmt.Fprintln(t.stdout)
	return t.printFlows(e.Flows, s.Containers, wide)
}

// explanationText is an explanation without its connections.
func explanationText(e api.Explanation, width int) string {
	return cli.Wrap("", plain.Text(e.Subject)+" "+verdict(e), width) + "\n" + findingsText(e.Findings, width)
}

// verdict says in a word what an explanation explains.
func verdict(e api.Explanation) string {
	switch {
	case e.Express:
		return "goes express"
	case e.Known || len(e.Flows) > 0:
		return "goes regular"
	default:
		return "has no connections now"
	}
}

// findingsText is one finding a line, and below it its cause and its remedy.
func findingsText(findings []api.Finding, width int) string {
	var text strings.Builder
	line := func(prefix, what string) {
		if what != "" {
			text.WriteString(cli.Wrap(prefix, plain.Text(what), width) + "\n")
		}
	}
	for _, f := range findings {
		line(fmt.Sprintf("%-4s  ", f.Level), f.What)
		line("      why: ", f.Why)
		line("      do:  ", f.Remedy)
	}
	return text.String()
}
