package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/state"
)

const (
	// pluginName is CNI's plugin, beside scon and where runtimes look for it.
	pluginName = "scon-cni"
	// listName is the name of the list that is installed: runtimes take the first one.
	listName = "00-scon.conflist"
)

type pluginOptions struct {
	plugins, lists string // directories
	dir            string // state directory
	onTerm         bool
}

func (t *tool) newStartupPluginCommand() *cobra.Command {
	var o pluginOptions
	cmd := &cobra.Command{
		Use:   "plugin LIST | plugin --on-term",
		Short: "Make scon-cni with a list the network of this machine's container runtime, or remove both",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.onTerm != (len(args) == 0) {
				return cli.Usagef(cmd, "takes a list, or --on-term")
			}
			if o.onTerm {
				return t.removePluginOnTerm(o)
			}
			return o.install(args[0])
		},
	}
	cmd.Flags().StringVar(&o.plugins, "plugins", "/opt/cni/bin", "`DIRECTORY` of the runtime's plugins")
	cmd.Flags().StringVar(&o.lists, "lists", "/etc/cni/net.d", "`DIRECTORY` of the runtime's lists")
	cmd.Flags().StringVar(&o.dir, "state-dir", state.DefaultDir, "state `DIRECTORY` of the startup service")
	cmd.Flags().BoolVar(&o.onTerm, "on-term", false, "wait for SIGTERM, and then until no startup service runs; remove what was installed. One that goes on keeps it")
	return cmd
}

// install puts the plugin in its place, then the list: a runtime that reads the list finds
// the plugin.
func (o pluginOptions) install(list string) error {
	self, err := executable()
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(filepath.Dir(self), pluginName), filepath.Join(o.plugins, pluginName), 0o755); err != nil {
		return err
	}
	return replace(list, filepath.Join(o.lists, listName), 0o644)
}

// draft is what is added to the name of a file that is being written: no list, and no
// plugin that a list names.
const draft = ".new"

// remove removes the list, then the plugin, and what an install that was killed has left.
func (o pluginOptions) remove() error {
	for _, path := range []string{filepath.Join(o.lists, listName), filepath.Join(o.plugins, pluginName)} {
		for _, path := range []string{path, path + draft} {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// replace copies a file: whoever opens to sees the old file or all of the new one.
func replace(from, to string, mode fs.FileMode) (err error) {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	tmp := to + draft
	defer os.Remove(tmp)
	if err := os.WriteFile(tmp, content, mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil { // whatever umask is
		return err
	}
	return os.Rename(tmp, to)
}

// serviceLeaves is how long a startup service may take to end after its keeper was asked
// to: a rolling update that takes the service away comes to one node after the other.
const serviceLeaves = 10 * time.Minute

// removePluginOnTerm waits for SIGTERM, then until no startup service runs, and removes
// what was installed.
func (t *tool) removePluginOnTerm(o pluginOptions) error {
	end, err := keep(o.lists, serviceLeaves, func() error {
		unlock, err := state.Lock(state.Startup.Dir(o.dir))
		if err != nil {
			return err
		}
		defer unlock()
		return o.remove()
	})
	if err != nil {
		return err
	}
	switch end {
	case running:
		_, err = fmt.Fprintln(t.stdout, "A startup service is running: it keeps the plugin.")
	case succeeded:
		_, err = fmt.Fprintln(t.stdout, "Another keeper goes on: the plugin stays.")
	}
	return err
}
