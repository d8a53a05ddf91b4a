package express_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab/scontest"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/state"
)

// A daemon with a pipe has its socket, tells of who is there, and takes it away.
func TestBroker(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Pipe.Enabled = true }})
	client := api.Dial(state.Socket(b.StateDir()))
	conn, err := net.Dial("unixpacket", pipe.Socket(b.StateDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	scontest.Eventually(t, "one process is connected", func() error {
		p, err := client.Pipe()
		if err == nil && p.Processes != 1 {
			err = fmt.Errorf("%+v", p)
		}
		return err
	})
	var text strings.Builder
	if err := client.Metrics(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "scon_pipe_memory_limit_bytes 268435456\n") {
		t.Error(text.String())
	}
}

// What is in the way of the pipe is in the way of nothing else.
func TestBrokenBroker(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) { c.Pipe.Enabled = true }})
	if err := os.MkdirAll(b.StateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.StateDir(), "pipe"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.Up()
	if _, err := api.Dial(state.Socket(b.StateDir())).Pipe(); err == nil || !strings.Contains(err.Error(), "make the socket's directory") {
		t.Error(err)
	}
}
