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

// Config holds all settings. keys.go defines their YAML names. The comments of fields are the
// reference: packaging/scon.yaml is made of them (make generate), and of that scon.yaml(5).
type Config struct {
	// Bridges whose container ports are hooked: auto, or names such as
	// [docker0, br-lan]. auto: every bridge with container ports, updated as bridges
	// appear and disappear.
	Bridges Devices

	// Devices by which the containers' packets leave and enter the machine: auto, or
	// names such as [eth0, wlan0]. auto: every such device, not only the default
	// route's, updated as devices appear and disappear.
	Uplinks Devices

	// Maximum number of express connections, 64..1048576. The table takes memory for those
	// that there are, about 400 bytes each in the kernel; of the limit itself 24 bytes each.
	Connections int

	// Share of `connections` that one container may hold, 1..100 percent. A container that
	// uses up its share does not reduce another's.
	PerContainerShare int

	// Number of regular packets of a connection before it is composed, 2..65535; of TCP
	// only packets that the container sends count. Short connections then cost nothing. A
	// slow connection is composed with its third packet or a later one, after a second.
	Admit int

	// Time that a connection goes express before one of its packets goes regular again and
	// passes all rules, 10ms..1s, per direction, where something may matter that nobody
	// announces: an ipset, iptables-legacy, marks of connections, elements that expire. A
	// policy change without a notification takes effect within this time.
	Lease time.Duration

	// The same for all other connections, 10ms..10m; at most a third of the connection's
	// timeout in conntrack, and less than the kernel keeps neighbours and bridges MAC addresses
	// without packets. 1s makes all leases as short as `lease`, which is the least.
	LeaseMax time.Duration

	// The same limit in packets, 16..16777216, per direction; for TCP at most 4096.
	LeasePackets int

	// Idle time after which a connection leaves the express path, 1s..1h. It stays in
	// conntrack and returns with its next packets. While half of the table is free, a
	// connection stays for twice its longest silence, 10 minutes at most.
	FlushIdle time.Duration

	// Whether short TCP connections go express, too, their ends included. It sets
	// net.netfilter.nf_conntrack_tcp_be_liberal until `scon down`: conntrack no longer judges
	// sequence numbers, of any connection; their ends do. Where that is 1 anyway, they go
	// express without this setting. It needs the kernel's BTF; docs/limits.md has its limits.
	ShortConnections bool

	// Counters of the firewall that must count every packet, for example for billing or
	// alarms: names of nftables' counters, and comments of rules (nftables, iptables) or of
	// chains (nftables), such as [billing]. Connections that they count stay regular; other
	// counters do not count express packets.
	ExactCounters []string

	// Devices and containers that stay regular because their policy is enforced outside
	// Netfilter: devices (a container's port, an uplink), and containers by name=NAME,
	// label=KEY or label=KEY=VALUE, such as [eth1, name=db, label=com.example.policy=strict].
	// Labels are those of Docker and Podman, with containerd the annotations. If containers
	// are selected, a container that is not identified yet stays regular.
	Regular []Selector

	// The services' logs.
	Log Log

	// Address at which Prometheus may scrape the metrics of express, such as
	// 127.0.0.1:9477; :9477 is the same. Every client that reaches it may read them. "":
	// only at the socket.
	Metrics string

	// Address of the loopback device at which express answers probes, such as 127.0.0.1:9480;
	// :9480 is the same. /healthz: its loop works. /readyz: devices are hooked, and packets
	// may go express. 503 with the reason otherwise. "": none.
	Health string

	// Where the daemon serves the live page of `scon web`, docs/web.md: an address such as
	// 127.0.0.1:9478 (:9478 is the same), where the page shows nothing without the token that
	// `scon web` prints to whoever may read the socket of express; or the path of a unix socket
	// for root and socket_group, such as /run/scon/web.sock, for a proxy that asks who one is.
	// Elsewhere than at a loopback address the token crosses the network in clear text. "":
	// none; `scon web` serves the page itself.
	Web string

	// Name of the group whose members may read at the socket of express (status, flows,
	// explain); only root may change state. "": root only.
	SocketGroup string

	// Containers' networks: the startup service's agent behind the CNI plugin scon-cni and
	// the runtime scon-oci. docs/startup.md describes the configuration of networks.
	Startup Startup

	// Bulk data between containers of this machine without TCP/IP: the broker behind
	// libsconpipe. docs/pipe.md describes how containers connect to it.
	Pipe Pipe

	// The network driver `docker network create -d scon`: docs/docker-driver.md.
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
	// debug, info, warn or error.
	Level slog.Level
	// text or json.
	Format string
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
