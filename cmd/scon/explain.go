package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
)

func (t *tool) newExplainCommand() *cobra.Command {
	var asJSON bool
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
			return t.printExplanation(e)
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

func (t *tool) printExplanation(e api.Explanation) error {
	fmt.Fprintf(t.stdout, "%s %s\n", cli.Printable(e.Subject), verdict(e))
	printFindings(t.stdout, e.Findings)
	if len(e.Flows) == 0 {
		return nil
	}
	fmt.Fprintln(t.stdout)
	return flowTable(e.Flows).Print(t.stdout)
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

// printFindings prints one finding a line, and below it its cause and its remedy.
func printFindings(w io.Writer, findings []api.Finding) {
	for _, f := range findings {
		fmt.Fprintf(w, "%-4s  %s\n", f.Level, cli.Printable(f.What))
		if f.Why != "" {
			fmt.Fprintf(w, "      why: %s\n", cli.Printable(f.Why))
		}
		if f.Remedy != "" {
			fmt.Fprintf(w, "      do:  %s\n", cli.Printable(f.Remedy))
		}
	}
}
