package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/express/datapath"
)

// release is set by the Makefile (-ldflags "-X main.release=v1.2.3").
var release string

// version returns the release, or the commit of an unreleased build.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	commit := map[string]string{}
	for _, s := range info.Settings {
		commit[s.Key] = s.Value
	}
	rev := commit["vcs.revision"]
	if rev == "" {
		return "unreleased"
	}
	rev = "unreleased-" + rev[:min(12, len(rev))]
	if commit["vcs.modified"] == "true" {
		rev += "-modified"
	}
	return rev
}

// versions is the output of `scon version --json`.
type versions struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Arch    string `json:"arch"`
	Layout  int    `json:"layout"` // as api.Status has it
}

func (t *tool) newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versions{version(), runtime.Version(), runtime.GOARCH, datapath.LayoutVersion}
			if asJSON {
				return t.printJSON(v)
			}
			_, err := fmt.Fprintf(t.stdout, "scon %s (%s, %s)\n", v.Version, v.Go, v.Arch)
			return err
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}
