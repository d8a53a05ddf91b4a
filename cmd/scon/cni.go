package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/startup"
	"github.com/scon-project/scon/internal/startup/cni"
)

// newCNICommand returns the command that scon-cni executes when no agent answers.
func (t *tool) newCNICommand() *cobra.Command {
	return &cobra.Command{
		Use:    "cni",
		Short:  "Execute a CNI verb without an agent",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			r := cni.Request{
				Command:     os.Getenv("CNI_COMMAND"),
				ContainerID: os.Getenv("CNI_CONTAINERID"),
				Netns:       os.Getenv("CNI_NETNS"),
				IfName:      os.Getenv("CNI_IFNAME"),
				Args:        os.Getenv("CNI_ARGS"),
				Path:        os.Getenv("CNI_PATH"),
			}
			if r.Command != "VERSION" {
				input, err := io.ReadAll(os.Stdin)
				if err != nil {
					return err
				}
				r.Input = input
			}
			document, failed := startup.Alone(r)
			if _, err := t.stdout.Write(document); err != nil {
				return err
			}
			if failed {
				return cli.ErrReported
			}
			return nil
		},
	}
}
