package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/vm"
)

// costOptions are the flags of the commands that count instructions.
type costOptions struct {
	benchOptions
	steps []string
	host  bool
}

func (o *costOptions) addFlags(cmd *cobra.Command) {
	o.benchOptions.addFlags(cmd, bench.Cost)
	cmd.Flags().StringSliceVar(&o.steps, "steps", nil, "measure only these `steps`, such as udp_64,tcp_rr_64,tcp_crr")
	cmd.Flags().BoolVar(&o.host, "host", false, "count for a process of the host, without and with SCON loaded (modes native and loaded)")
}

// experiment is Cost with the modes and steps of the flags.
func (o *costOptions) experiment(cmd *cobra.Command) (bench.Experiment, error) {
	if o.rounds < 1 {
		return bench.Experiment{}, cli.Usagef(cmd, "--rounds %d: want at least 1", o.rounds)
	}
	e, err := bench.Cost, error(nil)
	if o.host {
		if o.overlay || o.uplink != "" || o.between != "" {
			return e, cli.Usagef(cmd, "--host is measured by itself, without --overlay, --uplink and --between")
		}
		e = e.OfHost()
	}
	e, err = o.choose(cmd, e)
	if err != nil || len(o.steps) == 0 {
		return e, err
	}
	if e, err = e.OnlySteps(o.steps); err != nil {
		return e, cli.Usagef(cmd, "--steps: %v", err)
	}
	return e, nil
}

func newBenchCostCommand() *cobra.Command {
	var o costOptions
	var where bench.CountOptions
	cmd := &cobra.Command{
		Use:   "cost",
		Short: "Count " + bench.Cost.Short,
		Long: `Count the instructions per message in native, container, flowtable, express,
express_short (express where conntrack is liberal) and netkit (express with a netkit
pair, Linux 6.7).

A Debian kernel runs under QEMU, which counts instructions. This needs no hardware
counters, and other load on this machine does not change the figures. Kernels are
fetched with apt and cached.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := o.experiment(cmd)
			if err != nil {
				return err
			}
			if err := checkGuest(cmd, where); err != nil {
				return err
			}
			where.Rounds, where.Progress = o.rounds, cli.NewProgress(os.Stderr)
			return o.show(cmd, func(ctx context.Context) (*bench.Result, error) {
				return bench.CountInGuest(ctx, e, where)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&where.Kernel, "kernel", "6.12", "`version` of the kernel: "+strings.Join(vm.Kernels(), ", "))
	cmd.Flags().StringVar(&where.Arch, "arch", runtime.GOARCH, "`architecture` of the guest: "+strings.Join(vm.Architectures(), ", "))
	cli.CompleteWords(cmd, "kernel", vm.Kernels()...)
	cli.CompleteWords(cmd, "arch", vm.Architectures()...)
	cmd.Flags().StringVar(&where.Executable, "executable", "", "`path` of scon for the guest, with scon-lab beside it (default: those of this machine)")
	return cmd
}

// checkGuest refuses an unknown kernel or architecture.
func checkGuest(cmd *cobra.Command, where bench.CountOptions) error {
	for _, f := range []struct {
		flag, value string
		known       []string
	}{{"kernel", where.Kernel, vm.Kernels()}, {"arch", where.Arch, vm.Architectures()}} {
		if !slices.Contains(f.known, f.value) {
			return cli.Usagef(cmd, "--%s %q: want %s", f.flag, f.value, strings.Join(f.known, ", "))
		}
	}
	return nil
}

// newBenchCountCommand is the command of bench cost that runs in the guest.
func newBenchCountCommand() *cobra.Command {
	var o costOptions
	cmd := &cobra.Command{
		Use:    "count",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := o.experiment(cmd)
			if err != nil {
				return err
			}
			result, err := bench.Count(cmd.Context(), e, bench.GuestOptions(o.rounds, cmd.OutOrStdout()))
			if result == nil {
				return err
			}
			return errors.Join(err, result.WriteGuestResult(cmd.OutOrStdout()))
		},
	}
	o.addFlags(cmd)
	return cmd
}
