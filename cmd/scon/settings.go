package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
)

// settings are the flags that `up` and the services share.
type settings struct {
	netns    string
	bridge   string
	uplink   string
	config   string
	stateDir string
}

func (s *settings) addFlags(cmd *cobra.Command) {
	cli.AddNetnsFlag(cmd, &s.netns, "run in that network namespace, a `name` of ip-netns or a path (default: this one)")
	addConfigFlag(cmd, &s.config)
	addStateDirFlag(cmd, &s.stateDir)
}

// addDeviceFlags adds the flags that only express has.
func (s *settings) addDeviceFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.bridge, "bridge", "auto", "`bridges` whose container ports are hooked: auto or a,b")
	f.StringVar(&s.uplink, "uplink", "auto", "`devices` their traffic leaves and enters by: auto or a,b")
}

func addConfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "config", "", "read settings from `file` (default \""+config.DefaultPath+"\" if it exists)")
}

func addStateDirFlag(cmd *cobra.Command, dir *string) {
	*dir = state.DefaultDir
	cmd.Flags().Var((*cli.NonEmpty)(dir), "state-dir", "`directory` of all services for sockets, locks and logs")
}

// options returns the options of a service: flags override the file, the file
// overrides the defaults. Paths are absolute. --socket is the service's.
func (s *settings) options(cmd *cobra.Command, t *tool, u unit) (service.Options, error) {
	o := service.Options{Netns: s.netns, StateDir: s.stateDir, Socket: t.socket, Version: version()}
	var err error
	if o.Config, o.File, err = s.load(cmd, t.config); err != nil {
		return o, err
	}
	if o.Socket == "" {
		o.Socket = u.Socket(s.stateDir)
	}
	paths := []*string{&o.StateDir, &o.Socket}
	if strings.Contains(o.Netns, "/") {
		paths = append(paths, &o.Netns)
	}
	for _, p := range paths {
		if *p, err = filepath.Abs(*p); err != nil {
			return o, fmt.Errorf("find %s: %w", *p, err)
		}
	}
	return o, nil
}

// loadFile returns the configuration of the file --config, else of the file at
// usual, which is optional. path is the file that was read, "" for none.
func loadFile(cmd *cobra.Command, file, usual string) (c config.Config, path string, err error) {
	if cmd.Flags().Changed("config") {
		c, err = config.Load(file)
		return c, file, err
	}
	return loadUsual(usual)
}

// loadUsual is loadFile for a file that is optional.
func loadUsual(usual string) (c config.Config, path string, err error) {
	c, err = config.Load(usual)
	if errors.Is(err, fs.ErrNotExist) {
		return config.Default(), "", nil
	}
	return c, usual, err
}

// load returns the configuration; flags override the file. file is where all of it is from,
// else "".
func (s *settings) load(cmd *cobra.Command, usual string) (c config.Config, file string, err error) {
	if checked := os.Getenv(checkedEnv); checked != "" {
		_ = os.Unsetenv(checkedEnv)
		c = config.Default() // for what an older release does not have
		err = json.Unmarshal([]byte(checked), &c)
		return c, "", err
	}
	c, file, err = loadFile(cmd, s.config, usual)
	if err != nil {
		return c, "", err
	}
	for _, d := range []struct {
		flag, value string
		field       *config.Devices
	}{{"bridge", s.bridge, &c.Bridges}, {"uplink", s.uplink, &c.Uplinks}} {
		if f := cmd.Flags().Lookup(d.flag); f == nil || !f.Changed {
			continue
		}
		if *d.field, err = config.ParseDevices(d.value); err != nil {
			return c, "", cli.Usagef(cmd, "--%s %v", d.flag, err)
		}
		file = ""
	}
	return c, file, c.Validate()
}

// executable returns the path of this program, to execute it again.
func executable() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the path of scon: %w", err)
	}
	return path, nil
}
