// Package config reads the services' settings from a YAML file.
//
// goccy/go-yaml parses the YAML. Its syntax tree has the line and column of every key and
// value, so that each error names the place, the key and the accepted values; koanf has
// no such positions. A table of keys (keys.go) converts the values, not the library's
// decoder, which even in strict mode accepts 1.5 and "8192" as whole numbers, skips an
// empty value and loses the position of an invalid duration.
package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// DefaultPath is the installed path of the file.
const DefaultPath = "/etc/scon/scon.yaml"

// Config holds all settings. keys.go defines their YAML names.
type Config struct {
	// Bridges are the bridges whose container ports are hooked.
	Bridges Devices

	// Uplinks are the devices by which the containers' packets leave and enter the
	// machine.
	Uplinks Devices

	// Connections is the maximum number of Conentries, 64..1048576, default 8192. The
	// table takes memory for those that there are; of the limit itself 24 bytes each.
	Connections int

	// PerContainerShare is the share of Connections that one container may hold, 1..100
	// percent, default 50.
	PerContainerShare int

	// Admit is the number of regular packets of a connection before it is composed,
	// 2..65535, default 8: short connections must not cost more. Of TCP only packets
	// that the container sends count. A slow connection needs three, and a second.
	Admit int

	// Lease is the time that one direction of a connection goes express before one
	// packet goes regular again, 10 ms..1 s, default 1 s. A policy change without a
	// notification takes effect within this time.
	Lease time.Duration

	// LeaseMax is the same where nothing may matter that is not announced, 10 ms..10 min,
	// default 45 s: before the kernel forgets a neighbour that no packet uses. It is at
	// most a third of the connection's timeout in conntrack, and never shorter than Lease.
	LeaseMax time.Duration

	// LeasePackets is the lease in packets of one direction, 16..16777216, default
	// 65536; for TCP at most 4096.
	LeasePackets int

	// FlushIdle is the idle time after which a Conentry is removed, 1 s..1 h, default
	// 10 s. While there is room, twice its connection's longest silence replaces it.
	FlushIdle time.Duration

	// ExactCounters are counters of rules that must count every packet: named counters
	// of nftables, and those of rules or chains with such a comment. Connections that
	// they count stay regular. Default none.
	ExactCounters []string

	// Regular selects devices and containers whose policy is enforced outside
	// Netfilter: their packets stay regular. Default none.
	Regular []Selector

	// Log sets the level and the format of the log.
	Log Log

	// Metrics is the address, IP:PORT, at which Prometheus may scrape the metrics of
	// express beside the socket. "", the default, is none.
	Metrics string

	// Health is the address, IP:PORT of the loopback device, at which express says
	// whether it works and whether it is ready. "", the default, is none.
	Health string

	// Web is where the daemon serves the live page: an address, IP:PORT, with a token,
	// or the path of a unix socket for SocketGroup. "", the default, is none.
	Web string

	// SocketGroup is the group that may read at the daemon's socket; only root may
	// change state. "", the default, admits root only.
	SocketGroup string

	// Startup configures the startup service's agent.
	Startup Startup

	// Pipe configures the pipe's broker.
	Pipe Pipe

	// Docker configures the network driver for Docker.
	Docker Docker
}

// OfExpress returns the settings that express reads.
func (c Config) OfExpress() Config {
	d := Default()
	c.Startup, c.Pipe, c.Docker = d.Startup, d.Pipe, d.Docker
	return c
}

// OfStartup returns the settings that the startup service reads.
func (c Config) OfStartup() Config {
	d := Default()
	d.Log, d.Startup, d.Docker = c.Log, c.Startup, c.Docker
	return d
}

// OfPipe returns the settings that the pipe's broker reads.
func (c Config) OfPipe() Config {
	d := Default()
	d.Log, d.Pipe = c.Log, c.Pipe
	return d
}

// HasStartup reports whether the startup service is enabled.
func (c Config) HasStartup() bool { return c.Startup.Enabled || c.Docker.Enabled }

// Log configures the services' logs.
type Log struct {
	Level  slog.Level // debug, info (default), warn, error
	Format string     // FormatText (default) or FormatJSON
}

// Formats of the log.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// Default returns the settings without a file.
func Default() Config {
	return Config{
		Connections:       8192,
		PerContainerShare: 50,
		Admit:             8,
		Lease:             time.Second,
		LeaseMax:          45 * time.Second,
		LeasePackets:      65536,
		FlushIdle:         10 * time.Second,
		Log:               Log{Level: slog.LevelInfo, Format: FormatText},
		Startup:           defaultStartup(),
		Pipe:              defaultPipe(),
		Docker:            defaultDocker(),
	}
}

// Validate refuses a value out of its range. The error is a *ValueError.
func (c Config) Validate() error {
	for _, k := range keys {
		if err := k.check(&c); err != nil {
			return &ValueError{Key: k.name, Err: err}
		}
	}
	return c.Startup.checkTogether()
}

// A ValueError says which key has a value that it does not accept.
type ValueError struct {
	Key  string // the name in the file, such as "log.level"
	With string // the key whose value it contradicts, "" if none
	Err  error  // the value, and the accepted values
}

func (e *ValueError) Error() string { return e.Key + " " + e.Err.Error() }

func (e *ValueError) Unwrap() error { return e.Err }

// An elementError is about one element of a list.
type elementError struct {
	index int
	error
}

// ofElement returns an error about an element of a list.
func ofElement(index int, format string, args ...any) error {
	return &elementError{index, fmt.Errorf(format, args...)}
}

// Devices are names of network devices; nil is `auto`: every suitable device, updated as
// devices appear and disappear.
type Devices []string

// ParseDevices parses the form of the command line: "auto" or "a,b".
func ParseDevices(s string) (Devices, error) {
	if s == "auto" {
		return nil, nil
	}
	d := Devices(strings.Split(s, ","))
	return d, d.check()
}

// Auto reports whether the devices are discovered.
func (d Devices) Auto() bool { return d == nil }

func (d Devices) String() string {
	if d.Auto() {
		return "auto"
	}
	return strings.Join(d, ",")
}

// check refuses an empty list, an invalid name, and a name that occurs twice.
func (d Devices) check() error {
	if d != nil && len(d) == 0 {
		return fmt.Errorf("names no device: want auto or names such as [docker0]")
	}
	for i, name := range d {
		if !validDevice(name) {
			return ofElement(i, "names the device %q: want auto or device names of 1..15 bytes without '/', ':' and blanks", name)
		}
		if slices.Contains(d[:i], name) {
			return ofElement(i, "names the device %q twice", name)
		}
	}
	return nil
}

// validDevice is the kernel's dev_valid_name.
func validDevice(name string) bool {
	return len(name) >= 1 && len(name) <= 15 && name != "." && name != ".." &&
		!strings.ContainsAny(name, "/: \t\n\v\f\r\x00")
}
