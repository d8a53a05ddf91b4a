package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/netns"
)

func (t *tool) newDoctorCommand() *cobra.Command {
	var (
		asJSON    bool
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what works on this machine, what keeps flows regular, and how to mend it",
		Long: `Show what works on this machine, what keeps flows regular, and how to mend it.

No daemon is needed. Without root, what cannot be looked at is said. The exit
status is 1 when something is missing that SCON cannot do without.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			var d api.Doctor
			err := netns.Do(namespace, func() error {
				d = doctor.Examine()
				return nil
			})
			if err != nil {
				return err
			}
			if asJSON {
				err = t.printJSON(d)
			} else {
				err = t.printDoctor(d)
			}
			if err != nil {
				return err
			}
			return missing(d)
		},
	}
	addNetnsFlag(cmd, &namespace, "look into that network namespace, a `name` of ip-netns or a path (default: this one)")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// missing is an error when SCON cannot run there.
func missing(d api.Doctor) error {
	var n int
	for _, c := range d.Capabilities {
		if c.Level == "fail" {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d of the things that SCON cannot do without are missing; see the lines that begin with 'fail'", n)
	}
	return nil
}

func (t *tool) printDoctor(d api.Doctor) error {
	fmt.Fprintf(t.stdout, "kernel %s\n\n", d.Kernel)
	tab := newTable("", "WHAT", "FOUND", "FOR")
	for _, c := range d.Capabilities {
		tab.add(c.Level, c.Name, c.Found, c.For)
	}
	if err := tab.print(t.stdout); err != nil {
		return err
	}
	for _, c := range d.Capabilities {
		if c.Level == "ok" || c.Without == "" && c.Remedy == "" {
			continue
		}
		fmt.Fprintf(t.stdout, "\n%s: %s\n", c.Level, c.Name)
		if c.Without != "" {
			fmt.Fprintf(t.stdout, "      without it: %s\n", c.Without)
		}
		if c.Remedy != "" {
			fmt.Fprintf(t.stdout, "      do: %s\n", c.Remedy)
		}
	}
	if len(d.Findings) > 0 {
		fmt.Fprintln(t.stdout)
		t.printFindings(d.Findings)
	}
	return nil
}
