package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/scon-project/scon/internal/suggest"
)

// Pipe configures the broker of bulk data between containers.
type Pipe struct {
	// Whether the broker runs.
	Enabled bool

	// Groups of addresses: both ends of a connection must be in the same one, such as
	// [172.17.0.0/16]. []: the network decides which containers may connect.
	Allow []netip.Prefix

	// Limit on the rings of all connections, 1MiB..64GiB.
	MemoryLimit int64

	// Share of what the other containers have left that one container may hold, 1..100
	// percent: of memory, files, names, processes, and connections that are not accepted. A
	// container is known by its network namespace and by its cgroup.
	PerContainerShare int

	// Engines that connections may use, of sealed, bpf, copier and unix. One that is not
	// listed is never used. Two processes that cooperate keep a connection of unix or sealed
	// when rules come to forbid it: docs/pipe.md.
	Engines []string

	// Whether a GPU copies for the engine copier, if scon-pipe-cuda is installed and finds
	// one: it helps messages of 128 KiB and more, docs/pipe.md.
	CopyDevice bool

	// As `metrics`, for the broker.
	Metrics string
}

func defaultPipe() Pipe {
	return Pipe{MemoryLimit: 256 << 20, PerContainerShare: 50, Engines: []string{"bpf", "copier"}}
}

var pipeKeys = []key{
	flag("pipe.enabled", func(c *Config) *bool { return &c.Pipe.Enabled }),
	pipeAllow,
	size("pipe.memory_limit", 1<<20, 64<<30, func(c *Config) *int64 { return &c.Pipe.MemoryLimit }),
	number("pipe.per_container_share", "percent", 1, 100, func(c *Config) *int { return &c.Pipe.PerContainerShare }),
	pipeEngines,
	flag("pipe.copy_device", func(c *Config) *bool { return &c.Pipe.CopyDevice }),
	metrics("pipe.metrics", func(c *Config) *string { return &c.Pipe.Metrics }),
}

// pipeEngineNames are the engines that there are.
var pipeEngineNames = []string{"sealed", "bpf", "copier", "unix"}

var wantEngines = "want a list of engines of " + strings.Join(pipeEngineNames, ", ") + "; at least one"

var pipeEngines = key{
	name: "pipe.engines",
	read: func(c *Config, n ast.Node) error {
		list, err := texts(n, wantEngines)
		c.Pipe.Engines = list
		return err
	},
	check: func(c *Config) error {
		if len(c.Pipe.Engines) == 0 {
			return fmt.Errorf("is empty: %s", wantEngines)
		}
		for i, e := range c.Pipe.Engines {
			switch {
			case !slices.Contains(pipeEngineNames, e):
				return ofElement(i, "has %q: %s%s", e, wantEngines, suggest.Hint(e, pipeEngineNames))
			case slices.Contains(c.Pipe.Engines[:i], e):
				return ofElement(i, "names %q twice", e)
			}
		}
		return nil
	},
}

const wantGroups = "want a list of IPv4 networks such as [172.17.0.0/16], [] for none"

var pipeAllow = key{
	name: "pipe.allow",
	read: func(c *Config, n ast.Node) error {
		list, err := texts(n, wantGroups)
		if err != nil {
			return err
		}
		c.Pipe.Allow = nil
		for i, s := range list {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return ofElement(i, "has %q: %s", s, wantGroups)
			}
			c.Pipe.Allow = append(c.Pipe.Allow, p)
		}
		return nil
	},
	check: func(c *Config) error {
		for i, p := range c.Pipe.Allow {
			switch {
			case !p.Addr().Is4() || p != p.Masked():
				return ofElement(i, "has %q: %s", p, wantGroups)
			case slices.Contains(c.Pipe.Allow[:i], p):
				return ofElement(i, "names %q twice", p)
			}
		}
		return nil
	},
}
