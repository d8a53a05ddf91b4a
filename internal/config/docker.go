package config

import (
	"fmt"
	"path/filepath"

	"github.com/goccy/go-yaml/ast"
)

// Docker configures the network driver for Docker.
type Docker struct {
	// Whether the driver runs.
	Enabled bool

	// Path where Docker finds the driver; the file's name is the driver's.
	Socket string

	// Directory of its networks' records, kept over a reboot, as Docker keeps networks.
	Directory string
}

func defaultDocker() Docker {
	return Docker{Socket: "/run/docker/plugins/scon.sock", Directory: "/var/lib/scon/docker"}
}

var dockerKeys = []key{
	flag("docker.enabled", func(c *Config) *bool { return &c.Docker.Enabled }),
	path("docker.socket", "such as /run/docker/plugins/scon.sock", func(c *Config) *string { return &c.Docker.Socket }),
	path("docker.directory", "such as /var/lib/scon/docker", func(c *Config) *string { return &c.Docker.Directory }),
}

// path returns a key that takes an absolute path.
func path(name, example string, field func(*Config) *string) key {
	want := "want an absolute path " + example
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			s, ok := n.(*ast.StringNode)
			if !ok {
				return fmt.Errorf("is %s: %s", describe(n), want)
			}
			*field(c) = s.Value
			return nil
		},
		check: func(c *Config) error {
			if p := *field(c); !filepath.IsAbs(p) {
				return fmt.Errorf("is %q: %s", p, want)
			}
			return nil
		},
	}
}
