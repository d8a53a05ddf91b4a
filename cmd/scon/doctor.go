package main

import (
	"bufio"
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

func (t *tool) newDoctorCommand() *cobra.Command {
	var (
		asJSON    bool
		latency   bool
		namespace string
		file      string
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what disables the express path, and how to fix it",
		Long: `Show what works on this machine, what disables the express path, and how to fix it.

With --latency, show instead how the machine is tuned for low latency: the setting
of the paper on it, the setting here, and how to change it.

No daemon is needed. Without root, checks that need it are reported as such. The
exit status is 1 when a requirement of SCON is missing or a service hangs.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var refused error // of the settings
			if latency {
				if cmd.Flags().Changed("netns") || cmd.Flags().Changed("config") {
					return cli.Usagef(cmd, "--latency examines the machine: --netns and --config cannot be combined with it")
				}
				return t.doctorLatency(asJSON)
			}
			c, path, err := loadFile(cmd, file, t.config)
			if err != nil {
				return err
			}
			d, err := doctor.ExamineIn(namespace, doctor.Options{ExactCounters: c.ExactCounters})
			if err != nil {
				return err
			}
			check := func() error { return t.unit(state.Express).check(service.Options{Config: c, File: path}, nil) }
			if err := within(namespace, check); err != nil {
				again := "scon config check"
				if cmd.Flags().Changed("config") {
					again += " " + file
				}
				d.Findings = append(d.Findings, api.Finding{
					Level: "fail", What: "the daemon refuses to start with these settings", Why: err.Error(),
					Remedy: "change them, then '" + again + "'",
				})
				refused = fmt.Errorf("check the settings: %w", err)
			}
			services := t.services()
			d.Findings = append(t.serviceFindings(services), d.Findings...)
			if asJSON {
				err = t.printJSON(d)
			} else {
				err = t.printDoctor(d, "Express can run on this machine: 'scon up' starts it.")
			}
			if err != nil {
				return err
			}
			return cmp.Or(missing(d), hanging(services), refused)
		},
	}
	cli.AddNetnsFlag(cmd, &namespace, "examine that network namespace, a `name` of ip-netns or a path (default: this one)")
	addConfigFlag(cmd, &file)
	cmd.Flags().BoolVar(&latency, "latency", false, "show how the machine is tuned for low latency")
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

// doctorLatency prints the settings that affect latency. None of them is required.
func (t *tool) doctorLatency(asJSON bool) error {
	d := doctor.Latency()
	if asJSON {
		return t.printJSON(d)
	}
	out := bufio.NewWriter(t.stdout)
	fmt.Fprintf(out, "kernel %s\n\n", d.Kernel)
	for _, p := range d.Preparations {
		fmt.Fprintf(out, "%-7s  %-18s %s\n", p.Level, p.Name, plain.Text(p.Found))
		fmt.Fprintf(out, "%-27s the paper: %s; effect: %s\n", "", p.Paper, p.Seen)
		if p.Remedy != "" {
			fmt.Fprintf(out, "%-27s do: %s\n", "", p.Remedy)
		}
	}
	return out.Flush()
}

// missing returns an error if a requirement of SCON is missing.
func missing(d api.Doctor) error {
	var n int
	for _, c := range d.Capabilities {
		if c.Level == "fail" {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d requirements of SCON are missing; see the lines that begin with 'fail'", n)
	}
	return nil
}

// printDoctor prints the state of each capability, and below one that is not ok its
// purpose, the effect of its absence and the remedy. It ends with the verdict, unless
// requirements are missing, which is an error of the command, or only root can tell.
func (t *tool) printDoctor(d api.Doctor, verdict string) error {
	out := bufio.NewWriter(t.stdout)
	fmt.Fprintf(out, "kernel %s\n\n", d.Kernel)
	for _, c := range d.Capabilities {
		fmt.Fprintf(out, "%-4s  %-21s %s\n", c.Level, c.Name, plain.Text(c.Found))
		if c.Level == "ok" {
			continue
		}
		more := "for: " + c.For
		if c.Without != "" {
			more += "; without it: " + c.Without
		}
		fmt.Fprintf(out, "%-27s %s\n", "", more)
		if c.Remedy != "" {
			fmt.Fprintf(out, "%-27s do: %s\n", "", c.Remedy)
		}
	}
	if len(d.Findings) > 0 {
		fmt.Fprintln(out)
		fmt.Fprint(out, findingsText(d.Findings, cli.NoWidth))
	}
	byRoot := !slices.ContainsFunc(d.Capabilities, func(c api.Capability) bool { return c.Name == "root" && c.Level != "ok" })
	broken := slices.ContainsFunc(d.Findings, func(f api.Finding) bool { return f.Level == "fail" })
	if byRoot && missing(d) == nil && !broken {
		fmt.Fprintln(out, "\n"+verdict)
	}
	return out.Flush()
}
