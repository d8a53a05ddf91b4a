package cli

import (
	"errors"
	"strings"

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

// AddVersionFlag adds --version to a root command, which prints "NAME version VERSION". A
// form of its own would link text/template, and with it every method of every type.
func AddVersionFlag(root *cobra.Command, nameAndVersion string) {
	_, root.Version, _ = strings.Cut(nameAndVersion, " ")
	root.Flags().Bool("version", false, "print the version of this program") // without the short -v
}

// AddNetnsFlag adds --netns.
func AddNetnsFlag(cmd *cobra.Command, netns *string, usage string) {
	cmd.Flags().Var((*NonEmpty)(netns), "netns", usage)
	CompleteFlag(cmd, "netns", namespaces)
}
