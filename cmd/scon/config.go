package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/service"
)

func (t *tool) newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the settings",
	}
	cmd.AddCommand(t.newConfigCheckCommand())
	return cmd
}

func (t *tool) newConfigCheckCommand() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check settings as all services do at their start",
		Long: `Check settings as all services that they enable do at their start: the file, the
devices and the group that it names, and the addresses at which they listen. FILE is
` + config.DefaultPath + ` unless it is given. Nothing is started or changed. The exit status
is 1 if a service would refuse them.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, file, err := loadUsual(t.config)
			if len(args) > 0 {
				file = args[0]
				c, err = config.Load(file)
			}
			if err == nil {
				err = within(namespace, func() error { return t.checkAll(service.Options{Config: c, File: file}) })
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(t.stdout, "%s: the settings are good\n", plain.Text(cmp.Or(file, "no "+t.config)))
			return err
		},
	}
	cli.AddNetnsFlag(cmd, &namespace, "check them for that network namespace, a `name` of ip-netns or a path (default: this one)")
	return cmd
}

// checkAll makes the checks of all services that the settings enable.
func (t *tool) checkAll(o service.Options) error {
	var errs []error
	for _, u := range t.units {
		if u.enabled(o.Config) {
			errs = append(errs, u.check(o, nil))
		}
	}
	return errors.Join(errs...)
}
