package scontest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/state"
)

// sconCommand returns the command line of scon for a task. The configuration file
// goes into dir.
func (t Task) sconCommand(dir string) ([]string, error) {
	if t.Clean {
		return []string{t.SCON, "down", "--state-dir", t.StateDir, "--socket", t.Socket}, nil
	}
	file := filepath.Join(dir, "scon.yaml")
	err := os.WriteFile(file, []byte(yamlOf(t.Config)), 0o644)
	verb := []string{"daemon"}
	if t.Service == state.Startup || t.Service == state.Pipe {
		verb = []string{string(t.Service), "serve"}
	}
	return slices.Concat([]string{t.SCON}, verb, []string{"--config", file, "--state-dir", t.StateDir, "--socket", t.Socket}), err
}

// yamlOf returns a configuration as YAML, with log level debug.
func yamlOf(c config.Config) string {
	devices := func(d config.Devices) string {
		if d.Auto() {
			return "auto"
		}
		return "[" + d.String() + "]"
	}
	return fmt.Sprintf(`
bridges: %s
uplinks: %s
connections: %d
per_container_share: %d
admit: %d
lease: %v
lease_max: %v
lease_packets: %d
flush_idle: %v
short_connections: %v
log:
  level: debug
socket_group: %q
startup: {enabled: %v}
pipe: {enabled: %v, engines: [%s]}
`, devices(c.Bridges), devices(c.Uplinks), c.Connections, c.PerContainerShare, c.Admit, c.Lease, c.LeaseMax, c.LeasePackets, c.FlushIdle, c.ShortConnections, c.SocketGroup,
		c.Startup.Enabled, c.Pipe.Enabled, strings.Join(c.Pipe.Engines, ", "))
}
