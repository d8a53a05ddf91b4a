package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Startup configures the agent of the startup service.
type Startup struct {
	// Whether the agent runs.
	Enabled bool

	// CNI configurations whose networks are prepared when the service starts, such as
	// [/etc/cni/net.d/10-scon.conflist]; others are prepared at their first ADD.
	Networks []string

	// Names of networks that a container of scon-oci may select with its annotation
	// scon.network, or with SCON_NETWORK in its environment, such as [pods]. An image or a
	// pod's definition can set both, so they are honoured for these networks only.
	EnvNetworks []string

	// Time before a released address is leased again, 0s..1h; it is leased earlier only if
	// no other is free.
	AddressCooldown time.Duration

	// File to which the stages of every container's start are appended. "": none.
	StageLog string

	// As `metrics`, for the startup service.
	Metrics string

	// Prepared network namespaces, of each network.
	Pool Pool
	// Maximum number of containers in a stage at a time, 0..4096; 0: no limit.
	Limits Limits
}

// Pool configures the pool of prepared namespaces (Understanding Network Startup for
// Secure Containers, section 5.1).
type Pool struct {
	// Number of ready namespaces when idle, 0..4096; 0: no pool.
	WarmTarget int
	// Number below which the refill does not wait for a pause, 0..4096, unless a stream
	// of containers keeps all CPUs busy.
	Minimum int
	// Limit on the number that the expected demand can require, 0..4096.
	Maximum int
	// Limit on the kernel memory of all of them, counted as 256KiB each, 1MiB..64GiB.
	MemoryLimit int64
	// Time after the last burst until the number returns to warm_target, 1s..1h.
	Cooldown time.Duration
}

// NamespaceMemory is the kernel memory of a prepared namespace, in bytes.
const NamespaceMemory = 256 << 10

// Limits are the numbers of containers that may be in a stage at a time, 0..4096; 0, the
// default, is no limit (Understanding Network Startup for Secure Containers, section
// 5.2).
type Limits struct {
	NetNS, AddCNI, Cgroup, AttachIf, StartVM int
	// A container that has waited this long for admission proceeds, 10ms..20s.
	Timeout time.Duration
}

func defaultStartup() Startup {
	return Startup{
		AddressCooldown: 10 * time.Second,
		Pool:            Pool{WarmTarget: 32, Minimum: 4, Maximum: 400, MemoryLimit: 128 << 20, Cooldown: time.Minute},
		Limits:          Limits{Timeout: 5 * time.Second},
	}
}

const mostNamespaces = 4096

var startupKeys = []key{
	flag("startup.enabled", func(c *Config) *bool { return &c.Startup.Enabled }),
	files("startup.networks", func(c *Config) *[]string { return &c.Startup.Networks }),
	envNetworks,
	duration("startup.address_cooldown", 0, time.Hour, func(c *Config) *time.Duration { return &c.Startup.AddressCooldown }),
	stageLog,
	metrics("startup.metrics", func(c *Config) *string { return &c.Startup.Metrics }),
	number("startup.pool.warm_target", "namespaces", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Pool.WarmTarget }),
	number("startup.pool.minimum", "namespaces", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Pool.Minimum }),
	number("startup.pool.maximum", "namespaces", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Pool.Maximum }),
	size("startup.pool.memory_limit", 1<<20, 64<<30, func(c *Config) *int64 { return &c.Startup.Pool.MemoryLimit }),
	duration("startup.pool.cooldown", time.Second, time.Hour, func(c *Config) *time.Duration { return &c.Startup.Pool.Cooldown }),
	number("startup.limits.netns", "containers", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Limits.NetNS }),
	number("startup.limits.add_cni", "containers", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Limits.AddCNI }),
	number("startup.limits.cgroup", "containers", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Limits.Cgroup }),
	number("startup.limits.attach_if", "containers", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Limits.AttachIf }),
	number("startup.limits.start_vm", "containers", 0, mostNamespaces, func(c *Config) *int { return &c.Startup.Limits.StartVM }),
	duration("startup.limits.timeout", 10*time.Millisecond, 20*time.Second, func(c *Config) *time.Duration { return &c.Startup.Limits.Timeout }),
}

// checkTogether refuses combinations of values that contradict each other.
func (s Startup) checkTogether() error {
	p := s.Pool
	switch {
	case p.WarmTarget > p.Maximum:
		return &ValueError{Key: "startup.pool.warm_target", With: "startup.pool.maximum", Err: fmt.Errorf("is %d: want at most startup.pool.maximum, which is %d", p.WarmTarget, p.Maximum)}
	case p.WarmTarget > 0 && p.Minimum > p.WarmTarget:
		return &ValueError{Key: "startup.pool.minimum", With: "startup.pool.warm_target", Err: fmt.Errorf("is %d: want at most startup.pool.warm_target, which is %d", p.Minimum, p.WarmTarget)}
	case int64(p.WarmTarget)*NamespaceMemory > p.MemoryLimit:
		return &ValueError{Key: "startup.pool.memory_limit", With: "startup.pool.warm_target", Err: fmt.Errorf("is %s: startup.pool.warm_target namespaces alone take %s", bytesText(p.MemoryLimit), bytesText(int64(p.WarmTarget)*NamespaceMemory))}
	}
	return nil
}

// flag returns a key that takes true or false.
func flag(name string, field func(*Config) *bool) key {
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			b, ok := n.(*ast.BoolNode)
			if !ok {
				return fmt.Errorf("is %s: want true or false", describe(n))
			}
			*field(c) = b.Value
			return nil
		},
		check: func(*Config) error { return nil },
	}
}

// files returns a key that takes a list of absolute paths.
func files(name string, field func(*Config) *[]string) key {
	const want = "want a list of absolute paths such as [/etc/cni/net.d/10-scon.conflist], [] for none"
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			paths, err := texts(n, want)
			*field(c) = paths
			return err
		},
		check: func(c *Config) error {
			for i, p := range *field(c) {
				if !filepath.IsAbs(p) {
					return ofElement(i, "has %q: %s", p, want)
				}
				if slices.Contains((*field(c))[:i], p) {
					return ofElement(i, "names %q twice", p)
				}
			}
			return nil
		},
	}
}

var envNetworks = key{
	name: "startup.env_networks",
	read: func(c *Config, n ast.Node) error {
		names, err := texts(n, "want a list of names of networks such as [pods], [] for none")
		c.Startup.EnvNetworks = names
		return err
	},
	check: func(c *Config) error {
		for i, name := range c.Startup.EnvNetworks {
			if name == "" {
				return ofElement(i, "has an empty name: want names of networks such as [pods]")
			}
			if slices.Contains(c.Startup.EnvNetworks[:i], name) {
				return ofElement(i, "names %q twice", name)
			}
		}
		return nil
	},
}

var stageLog = key{
	name: "startup.stage_log",
	read: func(c *Config, n ast.Node) error {
		s, ok := n.(*ast.StringNode)
		if !ok {
			return fmt.Errorf("is %s: want an absolute path, or \"\" for none", describe(n))
		}
		c.Startup.StageLog = s.Value
		return nil
	},
	check: func(c *Config) error {
		if p := c.Startup.StageLog; p != "" && !filepath.IsAbs(p) {
			return fmt.Errorf("is %q: want an absolute path, or \"\" for none", p)
		}
		return nil
	},
}

var units = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// size returns a key that takes bytes with their unit, such as 128MiB.
func size(name string, low, high int64, field func(*Config) *int64) key {
	want := fmt.Sprintf("want a whole number with KiB, MiB or GiB, %s..%s", bytesText(low), bytesText(high))
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			if s, ok := n.(*ast.StringNode); ok {
				for _, u := range units {
					number, ok := strings.CutSuffix(s.Value, u.name)
					if v, err := strconv.ParseInt(number, 10, 32); ok && err == nil {
						*field(c) = v * u.bytes
						return nil
					}
				}
			}
			return fmt.Errorf("is %s: %s", describe(n), want)
		},
		check: func(c *Config) error {
			if v := *field(c); v < low || v > high {
				return fmt.Errorf("is %s: %s", bytesText(v), want)
			}
			return nil
		},
	}
}

func bytesText(n int64) string {
	for _, u := range units {
		if n%u.bytes == 0 {
			return fmt.Sprintf("%d%s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
