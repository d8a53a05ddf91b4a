package services

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/pipe"
	"github.com/scon-project/scon/internal/pipe/control"
	"github.com/scon-project/scon/internal/state"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The broker creates its socket, counts its sessions, and removes the socket at its end.
func TestBroker(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Pipe.Enabled = true }})
	broker := b.Serve(state.Pipe)
	client := control.Dial(state.Pipe.Socket(b.StateDir()))
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
	broker.Terminate()
	if _, err := os.Stat(pipe.Socket(b.StateDir())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}

// A failure to start the broker does not affect the other services.
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
	task := b.Task()
	task.Service, task.Socket = state.Pipe, state.Pipe.Socket(task.StateDir)
	if words := b.Launch(task).Refused(); !strings.Contains(words, "make the socket's directory") {
		t.Error(words)
	}
	b.Outgoing("udp", 1).GoExpress()
}
