package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/test/bed/lab"
)

// newLabCommand returns "scon lab", which builds a test network from network
// namespaces.
func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: cli.LabCommands["lab"],
		Long: `Build a gateway with containers from network namespaces.

The nodes are "edge", an external machine; "device", the gateway with a bridge and
NAT; and the containers "c1" to "cN". A native process runs in "device", so "native"
is an alias of it. Namespaces are named after the nodes: scon-edge, scon-device,
scon-c1.

"up --topology FILE" builds the nodes and links of a file in containerlab's format
instead, in namespaces scon-NAME-NODE. lab/docs/topologies.md describes the format.

With the docker rules, port 8000+n of device is forwarded to port 80 of container n,
and port 5200+n to its port 5201, for TCP and UDP.`,
		Example: `  scon lab up --containers 2
  scon daemon --netns scon-device
  scon lab exec edge -- iperf3 -s -D
  scon lab exec c1 -- iperf3 -c 10.77.0.2
  scon lab down`,
	}
	cmd.AddCommand(newLabUpCommand(), newLabExecCommand(), newLabDownCommand(), newLabSchemaCommand())
	return cmd
}

// newLabUpCommand returns "scon lab up".
func newLabUpCommand() *cobra.Command {
	var opts lab.Options
	var file string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Build the lab, or change the existing one",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" {
				if cmd.Flags().Changed("containers") || cmd.Flags().Changed("rules") || opts.IPv6 || opts.Overlay != "" || opts.Uplink != "" {
					return cli.Usagef(cmd, "--containers, --rules, --ipv6, --overlay and --uplink are for the lab without --topology")
				}
				return upTopology(cmd, file)
			}
			l, err := lab.Up(opts)
			if err != nil {
				return err
			}
			return printLab(cmd.OutOrStdout(), l)
		},
	}
	cmd.Flags().IntVar(&opts.Containers, "containers", 2, "number of containers")
	cmd.Flags().StringVar(&opts.Rules, "rules", lab.RulesDocker,
		"rules of device: docker, none (masquerading only), or a `file` for iptables-restore or nft")
	cmd.Flags().BoolVar(&opts.IPv6, "ipv6", false, "add IPv6 addresses and rules: edge is fd00:77::2, c1 fd00:17::2")
	cmd.Flags().StringVar(&opts.Overlay, "overlay", "", "also connect device and edge by VXLAN, as flannel or docker does; edge is 10.244.1.1 or 10.0.0.254 there")
	cmd.Flags().StringVar(&opts.Uplink, "uplink", "", "also connect device and edge by a second uplink of this `kind`: "+
		strings.Join(lab.UplinkKinds(), ", ")+"; edge is 10.78.0.2 there")
	cmd.Flags().Var((*cli.NonEmpty)(&file), "topology", "build the nodes and links of this `file` instead")
	return cmd
}

// printLab prints where the nodes of a lab are.
func printLab(out io.Writer, l *lab.Lab) error {
	nodes, err := l.Nodes()
	if err != nil {
		return err
	}
	t := cli.NewTable("NODE", "ADDRESS", "NAMESPACE")
	for _, node := range nodes {
		t.Add(node, l.Addr(node), filepath.Base(l.Node(node)))
	}
	return t.Print(out)
}

// newLabExecCommand returns "scon lab exec".
func newLabExecCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "exec [NAME/]NODE -- CMD [ARG...]",
		Short: "Run a command in a node; its exit status is returned",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return execInLab(args[0], args[1:])
		},
	}
}

// execInLab replaces this process with a command in a node, which keeps the terminal
// and receives signals; its exit status is returned. execInLab returns on error only.
func execInLab(node string, argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	enter, err := findNode(node)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // execve keeps the namespace of the calling thread
	if err := enter(); err != nil {
		return err
	}
	if err := unix.Exec(path, argv, os.Environ()); err != nil {
		return fmt.Errorf("execute %s: %w", path, err)
	}
	return nil
}

// newLabDownCommand returns "scon lab down".
func newLabDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab and all topologies",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.Join(lab.Down(""), downTopologies())
		},
	}
}
