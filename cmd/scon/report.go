package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/numbers"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/report"
	"github.com/scon-project/scon/internal/state"
)

// reportFlags are what report's flags say.
type reportFlags struct {
	output, netns, config, dir string
	names, json                bool
}

func (t *tool) newReportCommand() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Collect what to send when something is wrong, without addresses, names and secrets",
		Long: `Collect what to send when something is wrong into a compressed archive that only
its owner may read: doctor, the state, counters and log of each service, rules,
kernel, devices with the programs at them, and settings.

Addresses and names are replaced by pseudonyms, the same one wherever an address or
a name occurs; addresses of one network stay in one network. Words that are neither
SCON's nor its tools' are replaced, so comments, labels, tokens and keys are not in
it. Look through it before you send it. Nothing is sent, and nothing outside this
machine is asked.

No service needs to run, and none that hangs is waited for. What could not be read,
for example without root, is listed with the reason.`,
		Example: "  scon report\n  scon report --names --output /tmp/scon.tar.gz",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.socket != "" && !cmd.Flags().Changed("state-dir") {
				f.dir = filepath.Dir(t.socket)
			}
			return t.report(f)
		},
	}
	cmd.Flags().Var((*cli.NonEmpty)(&f.output), "output", "write the archive to `file` (default scon-report-DATE-TIME.tar.gz)")
	cmd.Flags().BoolVar(&f.names, "names", false, "leave the names of containers")
	cli.AddNetnsFlag(cmd, &f.netns, "examine that network namespace, a `name` of ip-netns or a path (default: the daemon's, else this one)")
	addConfigFlag(cmd, &f.config)
	addStateDirFlag(cmd, &f.dir)
	cli.AddJSONFlag(cmd, &f.json)
	return cmd
}

func (t *tool) report(f reportFlags) error {
	path, err := filepath.Abs(cmp.Or(f.output, time.Now().Format("scon-report-20060102-150405")+".tar.gz"))
	if err != nil {
		return fmt.Errorf("find %s: %w", f.output, err)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file that a report can replace; name another one with --output", path)
	}
	o := report.Options{
		StateDir: f.dir, Config: cmp.Or(f.config, t.config), Netns: f.netns, Names: f.names, Version: thisVersion(),
		Progress: func(int, int, string) {},
	}
	for _, u := range t.units {
		socket := u.Socket(f.dir)
		if u.Service == state.Express {
			socket = cmp.Or(t.socket, socket)
		}
		if s, err := state.Read(u.Dir(f.dir)); err == nil {
			socket = cmp.Or(s.Socket, socket)
			if u.Service == state.Express {
				o.Netns = cmp.Or(o.Netns, s.Netns)
			}
		}
		o.Services = append(o.Services, report.Service{
			Name: u.id(), Unit: u.unitName() + ".service", State: u.Service, Socket: socket, Client: u.dial(socket),
		})
	}
	done := func() {}
	if terminal, ok := t.stderr.(*os.File); ok {
		bar := cli.NewProgress(terminal)
		o.Progress, done = bar.Step, bar.Done
	}
	d, err := report.Write(path, o)
	done()
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w; name another file with --output", err)
	case err != nil:
		return err
	case f.json:
		return t.printJSON(d)
	}
	return t.printReport(d)
}

// printReport lists what is in a report, and what is missing.
func (t *tool) printReport(d report.Document) error {
	tab := cli.NewTable("FILE", ">SIZE", "WHAT")
	var why []string // in the order of the files
	missing := make(map[string][]string)
	for _, p := range d.Parts {
		if p.Bytes > 0 {
			tab.Add(p.File, numbers.Bytes(p.Bytes), p.What)
		}
		if p.Missing == "" {
			continue
		}
		if len(missing[p.Missing]) == 0 {
			why = append(why, p.Missing)
		}
		missing[p.Missing] = append(missing[p.Missing], p.File)
	}
	if err := tab.Print(t.stdout); err != nil {
		return err
	}
	if len(why) > 0 {
		note := ""
		if os.Geteuid() != 0 {
			note = "; run as root, it reads what only root may"
		}
		fmt.Fprintf(t.stdout, "\nMissing%s:\n", note)
	}
	for _, w := range why {
		fmt.Fprintf(t.stdout, "  %s\n      %s\n", strings.Join(missing[w], ", "), plain.Text(w))
	}
	names := "names of containers too"
	if d.Names {
		names = "but for names of containers"
	}
	_, err := fmt.Fprintf(t.stdout, "\nWrote %s (%s). Addresses and names in it are replaced, %s.\nLook through it before you send it: tar -xzOf %s | less\n",
		d.File, numbers.Bytes(d.Bytes), names, d.File)
	return err
}
