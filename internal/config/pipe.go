package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/goccy/go-yaml/ast"
)

// Pipe configures the broker of bulk data between containers.
type Pipe struct {
	// Enabled starts the broker; default false.
	Enabled bool

	// Allow are groups of IPv4 addresses: both ends of a connection must be in the same
	// group. Default none: the network decides.
	Allow []netip.Prefix

	// MemoryLimit limits the rings of all connections, 1MiB..64GiB, default 256 MiB. A
	// container may hold half of it.
	MemoryLimit int64

	// CopyDevice lets a device copy for the engine copier, if the helper program is
	// installed and finds one; default false.
	CopyDevice bool

	// Metrics is Config.Metrics, for the broker.
	Metrics string
}

func defaultPipe() Pipe { return Pipe{MemoryLimit: 256 << 20} }

var pipeKeys = []key{
	flag("pipe.enabled", func(c *Config) *bool { return &c.Pipe.Enabled }),
	pipeAllow,
	size("pipe.memory_limit", 1<<20, 64<<30, func(c *Config) *int64 { return &c.Pipe.MemoryLimit }),
	flag("pipe.copy_device", func(c *Config) *bool { return &c.Pipe.CopyDevice }),
	metrics("pipe.metrics", func(c *Config) *string { return &c.Pipe.Metrics }),
}

const wantGroups = "want a list of IPv4 networks such as [172.17.0.0/16], [] for none"

var pipeAllow = key{
	name: "pipe.allow",
	read: func(c *Config, n ast.Node) error {
		list, ok := texts(n)
		if !ok {
			return fmt.Errorf("is %s: %s", describe(n), wantGroups)
		}
		c.Pipe.Allow = nil
		for _, s := range list {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return fmt.Errorf("has %q: %s", s, wantGroups)
			}
			c.Pipe.Allow = append(c.Pipe.Allow, p)
		}
		return nil
	},
	check: func(c *Config) error {
		for i, p := range c.Pipe.Allow {
			switch {
			case !p.Addr().Is4() || p != p.Masked():
				return fmt.Errorf("has %q: %s", p, wantGroups)
			case slices.Contains(c.Pipe.Allow[:i], p):
				return fmt.Errorf("names %q twice", p)
			}
		}
		return nil
	},
}
