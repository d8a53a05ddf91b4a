package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/cli"
	"github.com/scon-project/scon/internal/express"
	"github.com/scon-project/scon/internal/service"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/internal/web"
	"github.com/scon-project/scon/internal/web/documents"
)

// webAddress is the default address of the page.
const webAddress = "127.0.0.1:9478"

func (t *tool) newWebCommand() *cobra.Command {
	address := webAddress
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show containers and connections live in a browser",
		Long: `Show containers and connections live in a browser, as 'scon top' does in a terminal.

If the daemon serves the page (the setting web), the command prints its address and ends.
Otherwise, or with --listen, the command serves the page until it is ended, and asks the
daemon only while a page is open. The address ends in a token: without it the page shows
nothing, since every local user can connect to a loopback address. On a machine without a
browser, 'ssh -L 9478:127.0.0.1:9478 HOST' brings the page to yours. The page only reads.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := t.client().Web()
			none := new(api.Error)
			switch {
			case err != nil && !(errors.As(err, &none) && none.Status == api.ErrNoWeb.Status):
				return err
			case err == nil && !cmd.Flags().Changed("listen"):
				t.showPage(w.Address)
				return nil
			}
			return t.serveWeb(address)
		},
	}
	cmd.Flags().StringVar(&address, "listen", address, "`address` with a port, 0 for a free one, or the path of a unix socket")
	return cmd
}

// serveWeb serves the page over the daemon's socket until a signal.
func (t *tool) serveWeb(address string) error {
	dir := filepath.Dir(t.socketOf(state.Express))
	o := documents.Options{Dir: dir, Express: t.client()}
	if daemon, err := state.Read(dir); err == nil { // only root may read it
		o.Netns, o.Counters = daemon.Netns, daemon.Config.ExactCounters
	}
	if os.Geteuid() != 0 {
		o.NoProfile = "only root may trace packets"
	}
	s, err := web.Listen(address, web.Options{Feed: web.Relay(t.client().Live), Documents: documents.All(o)})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	t.showPage(s.URL())
	return s.Serve(ctx)
}

// showPage prints the page's address, and opens it on the desktop of a user. No browser opens
// a unix socket.
func (t *tool) showPage(address string) {
	fmt.Fprintln(t.stdout, address)
	if filepath.IsAbs(address) {
		fmt.Fprintf(t.stderr, "scon: the page is at a unix socket, for a proxy (docs/web.md has an example); 'sudo scon web --listen %s' serves it for a browser\n", webAddress)
		return
	}
	openBrowser(address)
}

// daemonPage returns what listens for the page of a daemon, nil if the settings have none.
func daemonPage(o service.Options) express.Page {
	if o.Config.Web == "" {
		return nil
	}
	return func(feed http.Handler, asked api.Reader) (service.Page, error) {
		all := documents.All(documents.Options{
			Dir: o.StateDir, Express: asked, Counters: o.Config.ExactCounters, NoProfile: "the daemon does not trace packets",
		})
		s, err := web.Listen(o.Config.Web, web.Options{Feed: feed, Documents: all, Group: o.Config.SocketGroup})
		if err != nil {
			return nil, err
		}
		if !s.IsLoopback() {
			o.Logger.Warn("other machines may reach the page, and its token crosses the network in clear text", "web", o.Config.Web)
		}
		return s, nil
	}
}

// openBrowser opens an address on the desktop of a user. Root has none of its own. The
// address is in a file, as all users see the arguments of programs.
func openBrowser(address string) {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if os.Geteuid() == 0 || dir == "" || os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	file := filepath.Join(dir, "scon-web.html")
	text := fmt.Sprintf("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=%s\">\n", html.EscapeString(address))
	if os.WriteFile(file, []byte(text), 0o600) != nil {
		return // the address is on the terminal
	}
	if cmd := exec.Command("xdg-open", file); cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
}
