package main

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Set by the Makefile (-ldflags "-X main.release=1.2.3 -X main.commit=...").
var release, commit string

// version returns the release, or "unreleased".
func version() string { return cmp.Or(release, "unreleased") }

// versions is the output of `scon version --json`.
type versions struct {
	Version string `json:"version"` // of the release
	Commit  string `json:"commit"`  // of the sources
	Go      string `json:"go"`      // version of Go
	Arch    string `json:"arch"`    // architecture
	Layout  int    `json:"layout"`  // as of `scon status`
}

func thisVersion() versions {
	return versions{version(), cmp.Or(commit, "unknown"), runtime.Version(), runtime.GOARCH, datapath.LayoutVersion}
}

func (v versions) String() string {
	return fmt.Sprintf("scon %s (commit %s, layout %d, %s, %s)", v.Version, v.Commit, v.Layout, v.Go, v.Arch)
}

func (t *tool) newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := thisVersion()
			if asJSON {
				return t.printJSON(v)
			}
			_, err := fmt.Fprintln(t.stdout, v)
			return err
		},
	}
	cli.AddJSONFlag(cmd, &asJSON)
	return cmd
}
