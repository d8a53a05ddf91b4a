package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/doctor"
)

func (t *tool) newReloadCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the services that run take over changed settings",
		Long: `Make the services that run take over changed settings. Each reads the file that it was
started with, and checks it as 'scon config check' does. If one refuses it, reload says
why, and all go on as they are. Else each whose own settings have changed begins again in
the same process. The daemon's Conentries are taken over as by 'systemctl restart scon',
and no packet is lost; the pipe's connections end. Options of the command line stay.

With --socket only the service that has it reloads: 'systemctl reload' does that.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.socket != "" && !cmd.Flags().Changed("state-dir") {
				dir = filepath.Dir(t.socket)
			}
			return t.reload(dir)
		},
	}
	addStateDirFlag(cmd, &dir)
	return cmd
}

// active is a service that runs.
type active struct {
	unit
	socket string
	api.Process
}

func (t *tool) reload(dir string) error {
	if err := doctor.RequireRoot("make services take over settings"); err != nil {
		return err
	}
	all, err := t.findRunning(dir)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("no service answers in %s; 'scon up' starts those that the settings enable", dir)
	}
	for _, r := range all {
		if _, err := r.dial(r.socket).Reload(true); err != nil {
			return fmt.Errorf("the %s (pid %d) refuses the settings, and everything goes on with the old ones: %w", r.name, r.PID, err)
		}
	}
	var errs []error
	for _, r := range all {
		errs = append(errs, t.reloadOne(r))
	}
	return errors.Join(errs...)
}

// findRunning finds the services that run: the one at --socket, else those of a state
// directory.
func (t *tool) findRunning(dir string) (all []active, err error) {
	for _, u := range t.units {
		s, err := t.readState(u.Dir(dir))
		if err != nil && t.socket == "" { // a unit may hide the others' states from its service
			return nil, err
		}
		at := cmp.Or(s.Socket, u.Socket(dir))
		if t.socket != "" && t.socket != at {
			continue
		}
		p, err := u.process(at)
		if err != nil {
			return nil, err
		}
		if p.PID != 0 {
			all = append(all, active{u, at, p})
		}
	}
	return all, nil
}

// reloadOne makes a service reload, and waits until the new one answers.
func (t *tool) reloadOne(r active) error {
	handle, err := unix.PidfdOpen(r.PID, 0)
	if err != nil {
		return fmt.Errorf("watch the %s (pid %d): %w", r.name, r.PID, err)
	}
	defer unix.Close(handle)
	answer, err := r.dial(r.socket).Reload(false)
	if err != nil {
		return err
	}
	if !answer.Changed {
		_, err := fmt.Fprintf(t.stdout, "the %s (pid %d): its settings are the same\n", r.name, r.PID)
		return err
	}
	pace := cli.NewPace(t.stderr, "starting with the new settings", func() (int, int) { return 0, 0 })
	defer pace.End()
	for !ends(handle) {
		now, err := r.unit.process(r.socket)
		if err == nil && now.PID != 0 && now.StartedMS != r.StartedMS {
			_, err := fmt.Fprintf(t.stdout, "the %s (pid %d) has the new settings\n", r.name, now.PID)
			return err
		}
		if pace.Stuck(time.Now()) {
			return fmt.Errorf("the %s (pid %d) does not answer with the new settings; see its log", r.name, r.PID)
		}
	}
	return fmt.Errorf("the %s (pid %d) has ended with the new settings; see its log", r.name, r.PID)
}
