package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// NonEmpty is a flag value that refuses "": an unset variable in a script must
// not select a default.
type NonEmpty string

func (n *NonEmpty) Set(s string) error {
	if s == "" {
		return errors.New("it is empty")
	}
	*n = NonEmpty(s)
	return nil
}

func (n *NonEmpty) String() string { return string(*n) }

func (n *NonEmpty) Type() string { return "string" }

// AddJSONFlag adds --json.
func AddJSONFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print the JSON document")
}

// AddVersionFlag adds --version, which prints a line, to a root command.
func AddVersionFlag(root *cobra.Command, line string) {
	root.Version = line
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version of this program") // without the short -v
}

// AddNetnsFlag adds --netns.
func AddNetnsFlag(cmd *cobra.Command, netns *string, usage string) {
	cmd.Flags().Var((*NonEmpty)(netns), "netns", usage)
}
