package config

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml/ast"

	"github.com/scon-project/scon/internal/suggest"
)

// A key is one setting: its name in the file, its conversion from the syntax tree, and the
// check of its value.
type key struct {
	name  string
	read  func(c *Config, n ast.Node) error
	check func(c *Config) error
}

// keys lists all keys of the file, in the order of packaging/scon.yaml.
var keys = slices.Concat([]key{
	devices("bridges", func(c *Config) *Devices { return &c.Bridges }),
	devices("uplinks", func(c *Config) *Devices { return &c.Uplinks }),
	number("connections", "connections", 64, 1<<20, func(c *Config) *int { return &c.Connections }),
	number("per_container_share", "percent", 1, 100, func(c *Config) *int { return &c.PerContainerShare }),
	number("admit", "packets", 2, 65535, func(c *Config) *int { return &c.Admit }),
	duration("lease", 10*time.Millisecond, time.Second, func(c *Config) *time.Duration { return &c.Lease }),
	duration("lease_max", 10*time.Millisecond, 10*time.Minute, func(c *Config) *time.Duration { return &c.LeaseMax }),
	number("lease_packets", "packets", 16, 1<<24, func(c *Config) *int { return &c.LeasePackets }),
	duration("flush_idle", time.Second, time.Hour, func(c *Config) *time.Duration { return &c.FlushIdle }),
	flag("short_connections", func(c *Config) *bool { return &c.ShortConnections }),
	exactCounters,
	regular,
	logLevel,
	logFormat,
	metrics("metrics", func(c *Config) *string { return &c.Metrics }),
	health,
	web,
	socketGroup,
}, startupKeys, pipeKeys, dockerKeys)

// devices returns a key that takes `auto` or a list of device names.
func devices(name string, field func(*Config) *Devices) key {
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			if s, ok := n.(*ast.StringNode); ok && s.Value == "auto" {
				*field(c) = nil
				return nil
			}
			names, err := texts(n, "want auto or a list of device names such as [docker0]")
			if err != nil {
				return err
			}
			*field(c) = append(Devices{}, names...) // not auto
			return nil
		},
		check: func(c *Config) error { return field(c).check() },
	}
}

// number returns a key that takes a whole number of a unit.
func number(name, unit string, low, high int, field func(*Config) *int) key {
	want := fmt.Sprintf("want a whole number of %s, %d..%d", unit, low, high)
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			var v int
			if i, ok := n.(*ast.IntegerNode); ok {
				if _, err := fmt.Sscan(fmt.Sprint(i.Value), &v); err == nil {
					*field(c) = v
					return nil
				}
			}
			return fmt.Errorf("is %s: %s", describe(n), want)
		},
		check: func(c *Config) error {
			if v := *field(c); v < low || v > high {
				return fmt.Errorf("is %d: %s", v, want)
			}
			return nil
		},
	}
}

// duration returns a key that takes a time with its unit, such as 10ms or 1s.
func duration(name string, low, high time.Duration, field func(*Config) *time.Duration) key {
	want := fmt.Sprintf("want a time with its unit, %v..%v", low, high)
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			if s, ok := n.(*ast.StringNode); ok {
				if v, err := time.ParseDuration(s.Value); err == nil {
					*field(c) = v
					return nil
				}
			}
			return fmt.Errorf("is %s: %s", describe(n), want)
		},
		check: func(c *Config) error {
			if v := *field(c); v < low || v > high {
				return fmt.Errorf("is %v: %s", v, want)
			}
			return nil
		},
	}
}

// texts returns a list of strings, nil if it is empty. The error says what is wanted.
func texts(n ast.Node, want string) (list []string, err error) {
	sequence, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, fmt.Errorf("is %s: %s", describe(n), want)
	}
	for i, v := range sequence.Values {
		s, ok := v.(*ast.StringNode)
		if !ok {
			return nil, ofElement(i, "has %s: %s", describe(v), want)
		}
		list = append(list, s.Value)
	}
	return list, nil
}

const wantCounters = "want a list of names of counters, or comments of rules or chains, such as [billing]; [] for none"

// maxComment is the length limit of a rule's comment in bytes, that of xt_comment.
const maxComment = 255

var exactCounters = key{
	name: "exact_counters",
	read: func(c *Config, n ast.Node) error {
		names, err := texts(n, wantCounters)
		c.ExactCounters = names
		return err
	},
	check: func(c *Config) error {
		for i, name := range c.ExactCounters {
			switch {
			case name == "":
				return ofElement(i, "has an empty name: %s", wantCounters)
			case len(name) > maxComment:
				return ofElement(i, "has a name of %d bytes: counters and comments have at most %d", len(name), maxComment)
			case strings.ContainsFunc(name, unicode.IsControl):
				return ofElement(i, "has the name %q: want printable characters", name)
			case slices.Contains(c.ExactCounters[:i], name):
				return ofElement(i, "names %q twice", name)
			}
		}
		return nil
	},
}

var levels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

var logLevel = key{
	name: "log.level",
	read: func(c *Config, n ast.Node) error {
		s, ok := n.(*ast.StringNode)
		if ok {
			c.Log.Level, ok = levels[s.Value]
		}
		if !ok {
			return fmt.Errorf("is %s: want debug, info, warn or error%s", describe(n), suggest.Hint(n.String(), slices.Collect(maps.Keys(levels))))
		}
		return nil
	},
	check: func(c *Config) error {
		for _, l := range levels {
			if c.Log.Level == l {
				return nil
			}
		}
		return fmt.Errorf("is %v: want debug, info, warn or error", c.Log.Level)
	},
}

var logFormat = key{
	name: "log.format",
	read: func(c *Config, n ast.Node) error {
		s, ok := n.(*ast.StringNode)
		if !ok {
			return fmt.Errorf("is %s: want text or json", describe(n))
		}
		c.Log.Format = s.Value
		return nil
	},
	check: func(c *Config) error {
		if !slices.Contains([]string{FormatText, FormatJSON}, c.Log.Format) {
			return fmt.Errorf("is %q: want text or json%s", c.Log.Format, suggest.Hint(c.Log.Format, []string{FormatText, FormatJSON}))
		}
		return nil
	},
}

// address returns a key that takes an address to listen at which accept accepts.
func address(name, want string, accept func(netip.Addr) bool, field func(*Config) *string) key {
	return key{
		name: name,
		read: func(c *Config, n ast.Node) error {
			s, ok := n.(*ast.StringNode)
			if !ok {
				return fmt.Errorf("is %s: %s", describe(n), want)
			}
			*field(c) = s.Value
			if strings.HasPrefix(s.Value, ":") {
				*field(c) = "127.0.0.1" + s.Value
			}
			return nil
		},
		check: func(c *Config) error {
			address := *field(c)
			if address == "" {
				return nil
			}
			if addr, err := netip.ParseAddrPort(address); err != nil || addr.Port() == 0 || !accept(addr.Addr()) {
				return fmt.Errorf("is %q: %s", address, want)
			}
			return nil
		},
	}
}

// metrics returns a key that takes the address at which Prometheus may scrape metrics.
func metrics(name string, field func(*Config) *string) key {
	const want = "want an IP address and a port such as 127.0.0.1:9477, or \"\" for none"
	return address(name, want, func(netip.Addr) bool { return true }, field)
}

var health = address("health", "want a loopback address and a port such as 127.0.0.1:9480, or \"\" for none",
	netip.Addr.IsLoopback, func(c *Config) *string { return &c.Health })

var web = key{
	name: "web",
	read: webAddress.read,
	check: func(c *Config) error {
		if filepath.IsAbs(c.Web) {
			return nil
		}
		return webAddress.check(c)
	},
}

// webAddress is the key web as an address.
var webAddress = address("web", "want an IP address and a port such as 127.0.0.1:9478, the path of a unix socket, or \"\" for none",
	func(netip.Addr) bool { return true }, func(c *Config) *string { return &c.Web })

var socketGroup = key{
	name: "socket_group",
	read: func(c *Config, n ast.Node) error {
		s, ok := n.(*ast.StringNode)
		if !ok {
			return fmt.Errorf("is %s: want a group's name, or \"\" for root only", describe(n))
		}
		c.SocketGroup = s.Value
		return nil
	},
	check: func(c *Config) error {
		if strings.ContainsAny(c.SocketGroup, ":, \t\n\x00") {
			return fmt.Errorf("is %q: want a group's name, or \"\" for root only", c.SocketGroup)
		}
		return nil
	},
}

// describe returns a value of the file as the user wrote it.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.NullNode:
		return "empty"
	case *ast.StringNode:
		return fmt.Sprintf("%q", n.Value)
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	default:
		return n.String()
	}
}
