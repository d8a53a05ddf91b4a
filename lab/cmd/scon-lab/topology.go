package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/lab/topology"
	"github.com/scon-project/scon/test/bed/lab"
)

// newLabSchemaCommand returns "scon lab schema", for editors.
func newLabSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of topology files",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), topology.Schema)
			return err
		},
	}
}

// upTopology builds the topology of a file and prints where its nodes are.
func upTopology(cmd *cobra.Command, file string) error {
	t, err := topology.Load(file)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := upWithPace(ctx, cmd.ErrOrStderr(), t)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted; the topology is removed")
	}
	if err != nil {
		return err
	}
	out := cli.NewTable("NODE", "ADDRESS", "NAMESPACE")
	for _, n := range l.Nodes {
		out.Add(n.Name, l.Addr(n.Name), filepath.Base(l.Path(n.Name)))
	}
	return out.Print(cmd.OutOrStdout())
}

// upWithPace builds a topology and shows the progress if that takes long.
func upWithPace(ctx context.Context, stderr io.Writer, t *topology.Topology) (*topology.Lab, error) {
	var done, total atomic.Int64
	pace := cli.NewPace(stderr, "building", func() (int, int) { return int(done.Load()), int(total.Load()) })
	defer pace.End()
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(cli.PollInterval):
				pace.Stuck(time.Now())
			}
		}
	}()
	return topology.Up(ctx, t, topology.Options{Progress: func(d, n int) {
		done.Store(int64(d))
		total.Store(int64(n))
	}})
}

// findNode finds a node of the lab or of a topology by NODE, or by NAME/NODE if the
// name is ambiguous, and returns a function that enters its namespace.
func findNode(name string) (enter func() error, err error) {
	topologies, err := topology.List("")
	if err != nil {
		return nil, err
	}
	var found []string
	add := func(owner, node string, fn func() error) {
		if name == node || name == owner+"/"+node {
			found = append(found, owner+"/"+node)
			enter = fn
		}
	}
	for _, t := range topologies {
		for _, n := range t.Nodes {
			add(t.Name, n.Name, func() error { return t.Enter(n.Name) })
		}
	}
	l, err := lab.Open("")
	if errors.Is(err, lab.ErrDown) && len(topologies) > 0 {
		err = nil
	} else if err == nil {
		nodes, listErr := l.Nodes()
		err = listErr
		for _, n := range append(nodes, "native") {
			add("lab", n, func() error { return l.Enter(n) })
		}
	}
	switch {
	case err != nil:
		return nil, err
	case len(found) > 1:
		return nil, fmt.Errorf("node %q exists several times: use one of %s", name, strings.Join(found, ", "))
	case len(found) == 1:
		return enter, nil
	case l != nil:
		return func() error { return l.Enter(name) }, nil // whose error lists the nodes
	}
	var names []string
	for _, t := range topologies {
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("topology %s has no node %q", strings.Join(names, ", "), name)
}

// downTopologies removes every topology that is up.
func downTopologies() error {
	topologies, err := topology.List("")
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range topologies {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
