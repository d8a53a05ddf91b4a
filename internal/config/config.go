// Package config reads the daemon's settings from a YAML file.
//
// The YAML is parsed by goccy/go-yaml, chosen over koanf because its syntax
// tree carries line and column of every key and value: each refusal names the
// place, the key and what the key accepts. The values are taken from the tree
// by a table of keys (keys.go) and not by the library's decoder, which, also
// in strict mode, reads 1.5 and "8192" as whole numbers, skips an empty value
// and loses the place of a bad duration.
package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// DefaultPath is where `make install` puts the file.
const DefaultPath = "/etc/scon/scon.yaml"

// Config is every setting of the daemon. The YAML names stand in keys.go.
type Config struct {
	// Bridges are the bridges whose container ports are hooked.
	Bridges Devices

	// Uplinks are the devices by which the containers' traffic leaves and
	// enters the machine.
	Uplinks Devices

	// Connections is the most Conentries that may exist at a time,
	// 64..1048576, default 8192. It decides the size of the table in memory.
	Connections int

	// PerContainerShare is how much of Connections one container may hold,
	// 1..100 percent, default 50.
	PerContainerShare int

	// Admit is how many packets of a connection go regular before it is
	// composed, 2..65535, default 8: a short connection must not pay. Of TCP
	// those that the container sends count.
	Admit int

	// Lease is how long one direction of a connection goes express before
	// one packet of it goes regular again, 10 ms..1 s, default 1 s. A change
	// of policy that nothing announces lives at most this long.
	Lease time.Duration

	// LeasePackets is the lease's bound in packets of one direction,
	// 16..16777216, default 65536; of TCP it is 4096 at most.
	LeasePackets int

	// FlushIdle is how long a Conentry may stay without a packet,
	// 1 s..1 h, default 10 s.
	FlushIdle time.Duration

	// ExactCounters are counters of the rules that must miss no packet: named
	// ones of nftables, and those of rules or of nftables' chains with such a
	// comment. Connections that they count stay regular. Default none.
	ExactCounters []string

	// Regular selects devices and containers whose policy is made elsewhere:
	// what passes them stays regular. Default none.
	Regular []Selector

	// Log says how much the daemon tells, and in which form.
	Log Log

	// Metrics is the address, IP:PORT, at which Prometheus may fetch the metrics
	// of express from outside the socket. "", the default, means nowhere.
	Metrics string

	// SocketGroup is the name of the group that may ask the daemon; changing
	// anything is for root.
	// "", the default, means root only.
	SocketGroup string

	// Startup gives containers their network.
	Startup Startup

	// Pipe carries bulk data between containers.
	Pipe Pipe

	// Docker makes networks for Docker.
	Docker Docker
}

// OfExpress is the configuration as far as express reads it.
func (c Config) OfExpress() Config {
	d := Default()
	c.Startup, c.Pipe, c.Docker = d.Startup, d.Pipe, d.Docker
	return c
}

// OfStartup is the configuration as far as the startup service reads it.
func (c Config) OfStartup() Config {
	d := Default()
	d.Log, d.Startup, d.Docker = c.Log, c.Startup, c.Docker
	return d
}

// OfPipe is the configuration as far as the pipe's broker reads it.
func (c Config) OfPipe() Config {
	d := Default()
	d.Log, d.Pipe = c.Log, c.Pipe
	return d
}

// HasStartup tells whether there is to be a startup service.
func (c Config) HasStartup() bool { return c.Startup.Enabled || c.Docker.Enabled }

// Log is the form of the daemon's log.
type Log struct {
	Level  slog.Level // debug, info (default), warn, error
	Format string     // FormatText (default) or FormatJSON
}

// Forms of the log.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// Default is the configuration of a daemon without a file.
func Default() Config {
	return Config{
		Connections:       8192,
		PerContainerShare: 50,
		Admit:             8,
		Lease:             time.Second,
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
	Key string // the name in the file, "log.level" for a key within a key
	Err error  // what it is, and what it may be
}

func (e *ValueError) Error() string { return e.Key + " " + e.Err.Error() }

func (e *ValueError) Unwrap() error { return e.Err }

// Devices are names of network devices; nil stands for `auto`: every device
// that fits, as they come and go.
type Devices []string

// ParseDevices reads the form of the command line: "auto" or "a,b".
func ParseDevices(s string) (Devices, error) {
	if s == "auto" {
		return nil, nil
	}
	d := Devices(strings.Split(s, ","))
	return d, d.check()
}

// Auto says whether the devices are found rather than named.
func (d Devices) Auto() bool { return d == nil }

func (d Devices) String() string {
	if d.Auto() {
		return "auto"
	}
	return strings.Join(d, ",")
}

// check refuses an empty list, a name the kernel would refuse, and a name
// that stands there twice.
func (d Devices) check() error {
	if d != nil && len(d) == 0 {
		return fmt.Errorf("names no device: want auto or names such as [docker0]")
	}
	for i, name := range d {
		if !validDevice(name) {
			return fmt.Errorf("names the device %q: want auto or device names of 1..15 bytes without '/', ':' and blanks", name)
		}
		if slices.Contains(d[:i], name) {
			return fmt.Errorf("names the device %q twice", name)
		}
	}
	return nil
}

// validDevice is the kernel's dev_valid_name.
func validDevice(name string) bool {
	return len(name) >= 1 && len(name) <= 15 && name != "." && name != ".." &&
		!strings.ContainsAny(name, "/: \t\n\v\f\r\x00")
}
