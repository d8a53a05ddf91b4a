package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sort"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/pin"
	"github.com/scon-project/scon/internal/plain"
)

// thisPinHost returns this machine with the network namespaces of its containers.
func thisPinHost() *pin.Host {
	var all []pin.Namespace
	for path, pid := range discover.Namespaces() {
		all = append(all, pin.Namespace{Path: path, PID: pid})
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Path < all[j].Path })
	return pin.ThisHost(all)
}

// newPinCommand returns "scon pin", which assigns network processing to CPUs.
func (t *tool) newPinCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pin",
		Short: "Place interrupts, packet steering and polling threads on CPUs",
		Long: `Place interrupts, packet steering and polling threads on CPUs.

A policy assigns the work of a network device to CPUs:

  none     unchanged
  spread   one queue per CPU, cyclically, CPUs of the device's NUMA node first
  numa     all CPUs of the device's NUMA node
  single   one CPU of the device's node for everything
  core     a core of the device's node for each queue

Isolated CPUs (isolcpus), CPUs without a tick (nohz_full) and CPUs reserved for a
container get no work. The previous settings are saved before the first change;
'scon pin restore' restores them, also after a crash.`,
		Example: `  scon pin plan --policy core      print the changes and their reasons
  scon pin apply --policy core
  scon pin status                  show the settings in force
  scon pin restore                 restore the previous settings`,
	}
	cmd.AddCommand(t.newPinPlanCommand(), t.newPinApplyCommand(), t.newPinRestoreCommand(), t.newPinStatusCommand())
	return cmd
}

// pinFlags select a plan.
type pinFlags struct {
	policy, steer string
	power         bool
	mergeUDP      bool
	devices       []string
	json          bool
}

func (f *pinFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", "", "placement of a device's work: none, spread, numa, single or core")
	flags.StringVar(&f.steer, "steer", string(pin.Direct), "packets after the interrupt: none, rps (to other CPUs) or threaded (polling threads)")
	flags.BoolVar(&f.power, "power", false, "keep the CPUs that get work out of deep idle states and at full frequency")
	flags.BoolVar(&f.mergeUDP, "merge-udp", false, "merge datagrams of a flow that arrive together (GRO, rx-udp-gro-forwarding)")
	flags.StringSliceVar(&f.devices, "device", nil, "only these devices, by `name` or address (default: all)")
	cli.AddJSONFlag(cmd, &f.json)
}

func (f *pinFlags) options(cmd *cobra.Command) (o pin.Options, err error) {
	if f.policy == "" {
		return o, cli.Usagef(cmd, "--policy is missing: want none, spread, numa, single or core")
	}
	o = pin.Options{Power: f.power, MergeUDP: f.mergeUDP, Devices: f.devices}
	if o.Policy, err = pin.ParsePolicy(f.policy); err == nil {
		o.Steer, err = pin.ParseSteer(f.steer)
	}
	if err != nil {
		return o, cli.Usagef(cmd, "%v", err)
	}
	return o, nil
}

// plan returns the plan that the flags select for a machine in its current state.
func (f *pinFlags) plan(cmd *cobra.Command, h *pin.Host) (pin.Plan, error) {
	o, err := f.options(cmd)
	if err != nil {
		return pin.Plan{}, err
	}
	s, err := h.Capture()
	if err != nil {
		return pin.Plan{}, err
	}
	return pin.New(s, o)
}

func (t *tool) newPinPlanCommand() *cobra.Command {
	var f pinFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print the changes and their reasons; change nothing",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.plan(cmd, t.pinHost())
			if err != nil {
				return err
			}
			if f.json {
				return t.printJSON(p)
			}
			return t.printPlan(p)
		},
	}
	f.add(cmd)
	return cmd
}

func (t *tool) printPlan(p pin.Plan) error {
	out := bufio.NewWriter(t.stdout)
	if len(p.Settings) > 0 {
		table := cli.NewTable("setting", "device", "now", "planned", "reason")
		for _, s := range p.Settings {
			table.Add(s.Place(), ofWhom(s), cli.OrDash(s.Now), cli.OrDash(s.Want), s.Why)
		}
		if err := table.Print(out); err != nil {
			return err
		}
	}
	printNotes(out, p.Notes)
	return out.Flush()
}

func printNotes(out io.Writer, notes []string) {
	for _, n := range notes {
		fmt.Fprintf(out, "note: %s\n", plain.Text(n))
	}
}

// ofWhom names the device of an interrupt, or the device and namespace of another
// setting.
func ofWhom(s pin.Setting) string {
	if s.Netns == "" {
		return cli.OrDash(s.Device)
	}
	return s.Device + " in " + filepath.Base(filepath.Dir(s.Netns)) + "/" + filepath.Base(s.Netns)
}

func (t *tool) newPinApplyCommand() *cobra.Command {
	var f pinFlags
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Restore the changes of an earlier apply, then make those of 'scon pin plan'",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h := t.pinHost()
			p, err := f.plan(cmd, h)
			if err != nil {
				return err
			}
			results, err := h.Apply(p)
			if err != nil {
				return err
			}
			if f.json {
				return t.printJSON(struct {
					Results []pin.Result `json:"results"`
					Notes   []string     `json:"notes"`
				}{append([]pin.Result{}, results...), p.Notes})
			}
			return t.printApplied(results, p.Notes)
		},
	}
	f.add(cmd)
	return cmd
}

func (t *tool) printApplied(results []pin.Result, notes []string) error {
	out := bufio.NewWriter(t.stdout)
	refused := 0
	if len(results) > 0 {
		table := cli.NewTable("setting", "device", "before", "now", "effective", "refused")
		for _, r := range results {
			now := r.Want
			if r.Refused != "" {
				now = r.Before
				refused++
			}
			table.Add(r.Place(), ofWhom(r.Setting), cli.OrDash(r.Before), cli.OrDash(now), cli.OrDash(r.Effective), cli.OrDash(r.Refused))
		}
		if err := table.Print(out); err != nil {
			return err
		}
	}
	printNotes(out, notes)
	fmt.Fprintf(out, "%d settings, %d refused by the kernel. 'scon pin restore' restores the previous ones.\n", len(results), refused)
	return out.Flush()
}

func (t *tool) newPinRestoreCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Restore the settings from before 'scon pin apply', also after a crash",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			list, err := t.pinHost().Restore()
			if asJSON {
				return errors.Join(err, t.printJSON(append([]pin.Restored{}, list...)))
			}
			out := bufio.NewWriter(t.stdout)
			back := 0
			for _, r := range list {
				if r.Left == "" {
					back++
					continue
				}
				fmt.Fprintf(out, "left: %s of %s: %s\n", plain.Text(r.Place()), plain.Text(ofWhom(r.Setting)), plain.Text(r.Left))
			}
			switch {
			case err != nil:
			case len(list) == 0:
				fmt.Fprintln(out, "Nothing was applied.")
			default:
				fmt.Fprintf(out, "%d settings are as they were.\n", back)
			}
			return errors.Join(err, out.Flush())
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

func (t *tool) newPinStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the settings in force and those that differ from the plan",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			status, err := t.pinHost().Inspect()
			if err != nil {
				return err
			}
			if asJSON {
				return t.printJSON(status)
			}
			return t.printPinStatus(status)
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}

func (t *tool) printPinStatus(s pin.Status) error {
	out := bufio.NewWriter(t.stdout)
	if !s.Applied {
		fmt.Fprintln(out, "Nothing is applied.")
		return out.Flush()
	}
	fmt.Fprintf(out, "policy %s, steer %s, power %v: %d settings, %d differ\n", s.Plan.Policy, s.Plan.Steer, s.Plan.Power,
		len(s.Settings), s.Differs)
	if s.Waiting > 0 {
		fmt.Fprintf(out, "%d interrupts move when they next fire.\n", s.Waiting)
	}
	if s.Booted {
		fmt.Fprintln(out, "The machine has rebooted since: 'scon pin restore' removes the saved state.")
	}
	if len(s.Settings) > 0 {
		table := cli.NewTable("setting", "device", "before", "planned", "now", "effective", "differs")
		for _, one := range s.Settings {
			differs := one.Differs
			if one.Waiting {
				differs = "moves when it next fires"
			}
			table.Add(one.Place(), ofWhom(one.Setting), cli.OrDash(one.Before), cli.OrDash(one.Want), cli.OrDash(one.Is),
				cli.OrDash(one.Effective), cli.OrDash(differs))
		}
		if err := table.Print(out); err != nil {
			return err
		}
	}
	return out.Flush()
}
