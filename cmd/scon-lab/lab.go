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
	"github.com/scon-project/scon/internal/lab"
)

// newLabCommand returns "scon lab", which builds a gateway with containers out
// of network namespaces, to try things in.
func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: cli.LabCommands["lab"],
		Long: `Build a gateway with containers out of network namespaces.

Its nodes are "edge", a machine outside; "device", the gateway with a bridge and
NAT; and the containers "c1" to "cN". What runs natively is a process in
"device", so "native" is another name of it. Namespaces are named after the
nodes: scon-edge, scon-device, scon-c1.

"up --topology FILE" builds nodes and links of your own instead, from a file in
containerlab's form; their namespaces are scon-NAME-NODE. docs/topologies.md
describes it.

With the docker rules, port 8000+n of device leads to port 80 of container n,
and port 5200+n to its port 5201, for TCP and for UDP.`,
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
		Short: "Build the lab, or adjust the one that is up",
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
		"rules of device: docker, none (masquerading alone), or a file of iptables-save or nft")
	cmd.Flags().BoolVar(&opts.IPv6, "ipv6", false, "addresses and rules of IPv6 as well: edge is fd00:77::2, c1 fd00:17::2")
	cmd.Flags().StringVar(&opts.Overlay, "overlay", "", "join device and edge by VXLAN as well, as flannel or docker does: edge is 10.244.1.1 or 10.0.0.254 there")
	cmd.Flags().StringVar(&opts.Uplink, "uplink", "", "join device and edge by a second uplink of this `kind` as well: "+
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
		Short: "Run a command in a node; the exit status is the command's",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return execInLab(args[0], args[1:])
		},
	}
}

// execInLab replaces this process by a command in a node, so that the command
// has its terminal, its signals and its exit status. It returns on error only.
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
		Short: "Remove the lab and every topology that is up",
		Args:  cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.Join(lab.Down(""), downTopologies())
		},
	}
}
