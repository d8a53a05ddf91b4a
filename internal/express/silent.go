package express

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/host/sysctl"
)

// silent looks at settings that the kernel does not announce, and that change what
// becomes of a packet of an established connection. RTM_NEWNETCONF tells of those of
// forwarding and of the reverse path. It belongs to the loop.
type silent struct {
	polled time.Time
	values map[string]string // by file
	limits composer.Limits
	files  *sysctl.Reader

	// had and has are what files were at the last poll and are at this one, without those that
	// could not be read.
	had, has map[string]string
}

// silentInterval is half of what the guarantee allows: a file may fail to be read once.
const silentInterval = 400 * time.Millisecond

// mostWatched bounds the devices whose settings are watched: with more of them (routed
// containers), leases are short.
const mostWatched = 64

// beLiberal has conntrack accept TCP whatever its sequence numbers.
const beLiberal = "netfilter/nf_conntrack_tcp_be_liberal"

// The files below /proc/sys/net; %s is a device, or all devices.
var (
	settings = []string{
		"ipv4/ip_forward_use_pmtu", "ipv4/ip_forward_update_priority",
		"ipv4/fib_multipath_hash_policy", "ipv4/fib_multipath_hash_fields", "ipv4/fib_multipath_hash_seed", "ipv4/fib_multipath_use_neigh",
		"ipv6/fib_multipath_hash_policy", "ipv6/fib_multipath_hash_fields",
		"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables",
		beLiberal,
		"bridge/bridge-nf-filter-vlan-tagged", "bridge/bridge-nf-filter-pppoe-tagged", "bridge/bridge-nf-pass-vlan-input-dev",
	}
	deviceSettings = []string{
		"ipv4/conf/%s/accept_local", "ipv4/conf/%s/route_localnet", "ipv4/conf/%s/src_valid_mark",
		"ipv4/conf/%s/disable_policy", "ipv4/conf/%s/disable_xfrm", "ipv4/conf/%s/accept_redirects",
		"ipv6/conf/%s/disable_ipv6", "ipv6/conf/%s/disable_policy", "ipv6/conf/%s/force_forwarding", "ipv6/conf/%s/forwarding", "ipv6/conf/%s/mtu",
	}
)

func (s *silent) due(now time.Time) bool {
	if now.Sub(s.polled) < silentInterval {
		return false
	}
	s.polled = now
	return true
}

// poll reads the settings, and the limits that depend on them. It returns what has
// changed, "" for nothing. devices are those of which IP may see packets come and go,
// ageing is how long bridges keep a MAC address.
func (s *silent) poll(devices []string, ageing time.Duration) (changed string) {
	was := s.values
	s.values = make(map[string]string, len(was))
	s.had, s.has = s.has, make(map[string]string, len(s.has))
	s.limits = composer.Limits{
		TCP: s.timeoutOf("tcp_timeout_established", "tcp_timeout_unacknowledged", "tcp_timeout_max_retrans"),
		UDP: s.timeoutOf("udp_timeout_stream"), Unassured: s.timeoutOf("udp_timeout"),
		Neighbour: never, Reachable: never, Table: ageing,
	}
	for _, name := range settings {
		s.read(name)
	}
	if len(devices) > mostWatched {
		s.limits.Unwatched = fmt.Sprintf("settings of more than %d devices are not watched", mostWatched)
		devices = nil
	}
	for _, dev := range append([]string{"all"}, devices...) {
		for _, name := range deviceSettings {
			s.read(fmt.Sprintf(name, dev))
		}
		if dev == "all" {
			continue
		}
		for _, version := range []string{"ipv4", "ipv6"} {
			timers := "net/" + version + "/neigh/" + dev
			s.limits.Neighbour = min(s.limits.Neighbour, s.timeIn(timers+"/gc_stale_time", time.Second))
			s.limits.Reachable = min(s.limits.Reachable, s.timeIn(timers+"/base_reachable_time_ms", time.Millisecond))
		}
	}
	s.limits.BridgesCall4, s.limits.BridgesCall6 = s.isOn("bridge/bridge-nf-call-iptables"), s.isOn("bridge/bridge-nf-call-ip6tables")
	events, ok := s.get("net/netfilter/nf_conntrack_events")
	s.limits.HidesEnds = events == "0" || !ok
	s.limits.NeighbourChoosesNexthop = s.isOn("ipv4/fib_multipath_use_neigh")
	s.readLearnt(devices)
	s.files.Trim()
	for file, value := range s.values {
		if before, known := was[file]; known && before != value {
			changed = "setting " + file
		}
	}
	return changed
}

// readLearnt finds the settings by which this host lets other routers change the way of packets
// that it forwards, of which the kernel announces nothing. IPv4 takes redirects where all devices
// may (IN_DEV_RX_REDIRECTS), IPv6 where a device does not forward by its own setting
// (rt6_do_redirect, rt6_check_neigh). Path MTUs of IPv4 count if a setting says so
// (ip_dst_mtu_maybe_forward).
func (s *silent) readLearnt(devices []string) {
	s.limits.PathMTU = s.isOn("ipv4/ip_forward_use_pmtu")
	switch {
	case s.limits.PathMTU:
		s.limits.Learnt4 = "path MTUs that this host has learnt count for what it forwards (ip_forward_use_pmtu), and the kernel does not announce them"
	case s.isOn("ipv4/conf/all/accept_redirects"):
		s.limits.Learnt4 = "redirects of other routers are accepted (accept_redirects), and the kernel does not announce them"
	}
	for _, dev := range devices {
		if s.values["ipv6/conf/"+dev+"/forwarding"] == "0" {
			s.limits.Learnt6 = "IPv6 takes redirects and other routers at " + dev + ", where forwarding is off, and the kernel does not announce them"
		}
	}
}

func (s *silent) isOn(name string) bool { return s.values[name] != "" && s.values[name] != "0" }

// read reads a setting. One that does not exist has no value.
func (s *silent) read(name string) {
	var ok bool
	if s.values[name], ok = s.get("net/" + name); !ok {
		s.limits.Unwatched = "a setting cannot be read"
	}
}

// get reads a file, "" if it does not exist. One that cannot be read, as while the process has too
// many files open, is what it was at the last poll: false if it could not be read then either.
func (s *silent) get(file string) (value string, ok bool) {
	value, err := s.files.Read(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		value, ok = s.had[file]
		return value, ok
	}
	s.has[file] = value
	return value, true
}

// never is longer than any lease.
const never = 24 * time.Hour

// timeoutOf returns the least of conntrack's timeouts.
func (s *silent) timeoutOf(names ...string) time.Duration {
	least := never
	for _, name := range names {
		least = min(least, s.timeIn("net/netfilter/nf_conntrack_"+name, time.Second))
	}
	return least
}

// timeIn reads a setting in a unit of time, never if there is none, 0 if it cannot be read.
func (s *silent) timeIn(name string, unit time.Duration) time.Duration {
	value, ok := s.get(name)
	if ok && value == "" {
		return never
	}
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return 0
	}
	return time.Duration(n) * unit
}
