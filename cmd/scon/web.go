package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/web"
)

// webAddress is the default address of the page.
const webAddress = "127.0.0.1:9478"

func (t *tool) newWebCommand() *cobra.Command {
	address := webAddress
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show containers and connections live in a browser",
		Long: `Show containers and connections live in a browser, as 'scon top' does in a terminal.

The command serves the page until it is ended, and asks the daemon only while a page is
open. It prints the page's address, which ends in a token: without it the page shows
nothing, since every local user can connect to a loopback address. On a machine without a
browser, 'ssh -L 9478:127.0.0.1:9478 HOST' brings the page to yours. The page only reads.`,
		Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := t.client().Status(); err != nil {
				return err
			}
			s, err := web.New(address, t.client(), time.Second)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			fmt.Fprintf(t.stdout, "%s\n", s.URL())
			openBrowser(s.URL())
			return s.Serve(ctx)
		},
	}
	cmd.Flags().StringVar(&address, "listen", address, "loopback `address` with a port; port 0 is a free one")
	return cmd
}

// openBrowser opens an address on the desktop of a user. Root has none of its own.
func openBrowser(url string) {
	if os.Geteuid() == 0 || os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	if cmd := exec.Command("xdg-open", url); cmd.Start() == nil {
		go func() { _ = cmd.Wait() }() // the address is on the terminal
	}
}
