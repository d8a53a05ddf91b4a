package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/plain"
	"github.com/scon-project/scon/internal/state"
)

// completionPatience is how long the daemon may take to name the containers: somebody waits
// for the shell.
const completionPatience = 500 * time.Millisecond

// completing has arguments and flags offer files only where they are files, which their
// usage says.
func completing(cmd *cobra.Command) {
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	if cmd.ValidArgsFunction == nil && (strings.Contains(cmd.Use, "FILE") || strings.Contains(cmd.Use, "COMMAND")) {
		cmd.ValidArgsFunction = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, done := cmd.GetFlagCompletionFunc(f.Name); done {
			return
		}
		switch name, _ := pflag.UnquoteUsage(f); name {
		case "file", "path":
			CompleteFlag(cmd, f.Name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
		case "folder", "directory":
			CompleteFlag(cmd, f.Name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
		}
	})
	for _, c := range cmd.Commands() {
		completing(c)
	}
}

// CompleteFlag sets what a flag of the command offers.
func CompleteFlag(cmd *cobra.Command, flag string, offer cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // there is no such flag, or it is set twice
	}
}

// CompleteWords has a flag offer words.
func CompleteWords(cmd *cobra.Command, flag string, words ...string) {
	CompleteFlag(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// Containers offers the names of the containers that the daemon at --socket knows, and
// nothing if it does not answer soon.
func Containers(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
	defer cancel()
	socket := cmp.Or(cmd.Flag("socket").Value.String(), state.Express.Socket(state.DefaultDir))
	answer, err := api.Dial(socket).Stream(ctx, api.StatusPath)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer answer.Close()
	var s api.Status
	if err := json.NewDecoder(answer).Decode(&s); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, c := range s.Containers {
		if name := cmp.Or(c.Name, c.ID, c.Dev); name == plain.Text(name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// OneContainer offers containers for the only argument of a command.
func OneContainer(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return Containers(cmd, args, begun)
}

// namespaces offers the namespaces that have a name, and files.
func namespaces(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	entries, err := os.ReadDir(filepath.Dir(netns.Path("name")))
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, cobra.ShellCompDirectiveDefault
}
