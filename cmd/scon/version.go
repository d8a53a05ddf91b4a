package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/express/datapath"
)

// release is set by the Makefile (-ldflags "-X main.release=1.2.3").
var release string

// version returns the release, or "unreleased".
func version() string { return cmp.Or(release, "unreleased") }

// commit returns the commit that was built, with "-modified" if the sources differed
// from it, or "unknown".
func commit() string {
	settings := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	hash := settings["vcs.revision"]
	if hash == "" {
		return "unknown"
	}
	if settings["vcs.modified"] == "true" {
		hash += "-modified"
	}
	return hash
}

// versions is the output of `scon version --json`.
type versions struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
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
			v := versions{version(), commit(), runtime.Version(), runtime.GOARCH, datapath.LayoutVersion}
			if asJSON {
				return t.printJSON(v)
			}
			_, err := fmt.Fprintf(t.stdout, "scon %s (commit %s, layout %d, %s, %s)\n", v.Version, v.Commit, v.Layout, v.Go, v.Arch)
			return err
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}
