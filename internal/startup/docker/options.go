package docker

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/suggest"
)

// Network is a network in its record.
type Network struct {
	ID     string `json:"id"`
	Bridge string `json:"bridge"`
	MAC    string `json:"mac"` // the bridge's
	MTU    int    `json:"mtu,omitempty"`
	// Pools are its subnets, at most one of each family; Gateways are the host's
	// addresses in them.
	Pools    []netip.Prefix `json:"pools"`
	Gateways []netip.Prefix `json:"gateways"`
	// Internal networks have no traffic with other networks.
	Internal bool `json:"internal,omitempty"`
	// Masquerade replaces containers' addresses by the host's.
	Masquerade bool `json:"masquerade"`
	// Apart isolates the network's containers from each other.
	Apart bool `json:"apart,omitempty"`
	// HostIP is the address of published ports without one of their own.
	HostIP netip.Addr `json:"host_ip,omitzero"`
	// IfPrefix is the prefix of device names in containers.
	IfPrefix  string               `json:"if_prefix"`
	Endpoints map[string]*Endpoint `json:"endpoints"`
}

// Endpoint is a container's attachment to a network.
type Endpoint struct {
	Addrs []netip.Addr `json:"addrs"` // at most one of each family
	MAC   string       `json:"mac"`
	Host  string       `json:"host,omitempty"` // the device on the host, "" before Join
	Ports []Port       `json:"ports,omitempty"`
}

// Labels of Docker.
const (
	labelGeneric  = "com.docker.network.generic"
	labelIPv4     = "com.docker.network.enable_ipv4"
	labelIPv6     = "com.docker.network.enable_ipv6"
	labelInternal = "com.docker.network.internal"
	labelPorts    = "com.docker.network.portmap"
	defaultPrefix = "eth"
	minMTU        = 68
	maxMTU        = 65535
	bridgePrefix  = "scon-"
	maxDeviceName = 15
)

// An option is a key of `docker network create -o`.
type option struct {
	name string
	set  func(n *Network, value string) error
}

var options = []option{
	{"com.docker.network.bridge.name", func(n *Network, v string) error {
		if len(v) > maxDeviceName || !isName(v) {
			return errors.New("want a device name of 1..15 letters, digits, _, . and -")
		}
		n.Bridge = v
		return nil
	}},
	{"com.docker.network.bridge.enable_icc", func(n *Network, v string) error {
		b, err := strconv.ParseBool(v)
		n.Apart = !b
		return wantBool(err)
	}},
	{"com.docker.network.bridge.enable_ip_masquerade", func(n *Network, v string) (err error) {
		n.Masquerade, err = strconv.ParseBool(v)
		return wantBool(err)
	}},
	{"com.docker.network.bridge.host_binding_ipv4", func(n *Network, v string) (err error) {
		n.HostIP, err = netip.ParseAddr(v)
		if err != nil || !n.HostIP.Is4() {
			return errors.New("want an IPv4 address of this host")
		}
		return nil
	}},
	{"com.docker.network.driver.mtu", func(n *Network, v string) (err error) {
		n.MTU, err = strconv.Atoi(v)
		if err != nil || n.MTU < minMTU || n.MTU > maxMTU {
			return fmt.Errorf("want a number of bytes, %d..%d", minMTU, maxMTU)
		}
		return nil
	}},
	{"com.docker.network.container_iface_prefix", func(n *Network, v string) error {
		if len(v) > 12 || !isName(v) {
			return errors.New("want a prefix of device names, 1..12 letters, digits, _, . and -")
		}
		n.IfPrefix = v
		return nil
	}},
}

// isName reports whether a device can have a name that means nothing else: the kernel completes
// names with %, and to iptables one that ends in + is every device that begins so.
func isName(v string) bool {
	return strings.Trim(v, ".") != "" && v[0] != '-' && !strings.ContainsFunc(v, func(r rune) bool {
		return !strings.ContainsRune("_.-", r) && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}

func wantBool(err error) error {
	if err != nil {
		return errors.New("want true or false")
	}
	return nil
}

// foreignOptions are options of other drivers, with the replacement.
var foreignOptions = map[string]string{
	"parent":       "containers leave by the host's routes, not by a parent device: remove the option, or use the driver macvlan or ipvlan",
	"macvlan_mode": "an option of the driver macvlan",
	"ipvlan_mode":  "an option of the driver ipvlan",
	"encrypted":    "an option of the driver overlay",
	"com.docker.network.driver.overlay.vxlanid_list": "an option of the driver overlay",
}

// networkOf parses the request of a network.
func networkOf(r *createNetworkRequest) (*Network, error) {
	if len(r.NetworkID) < maxDeviceName {
		return nil, fmt.Errorf("network identifier %q: want at least %d characters", r.NetworkID, maxDeviceName)
	}
	n := &Network{
		ID: r.NetworkID, Bridge: bridgePrefix + r.NetworkID[:maxDeviceName-len(bridgePrefix)], MAC: netdev.RandomMAC().String(),
		Masquerade: true, IfPrefix: defaultPrefix, Endpoints: make(map[string]*Endpoint),
	}
	n.Internal, _ = r.Options[labelInternal].(bool)
	if err := n.setOptions(r.Options[labelGeneric]); err != nil {
		return nil, err
	}
	for _, family := range [][]*ipamData{r.IPv4Data, r.IPv6Data} {
		switch {
		case len(family) > 1:
			return nil, fmt.Errorf("%d subnets of one family (%s, %s): want one of each family", len(family), family[0].Pool, family[1].Pool)
		case len(family) == 0:
			continue
		}
		if err := n.addPool(family[0]); err != nil {
			return nil, err
		}
	}
	if len(n.Pools) == 0 {
		return nil, errors.New("the network has no subnet: use Docker's default IPAM driver")
	}
	return n, nil
}

func (n *Network) setOptions(generic any) error {
	asked, _ := generic.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		i := slices.IndexFunc(options, func(o option) bool { return o.name == name })
		if i < 0 {
			return unknown(name)
		}
		value, ok := asked[name].(string)
		if !ok {
			return fmt.Errorf("option %s: want a string", name)
		}
		if err := options[i].set(n, value); err != nil {
			return fmt.Errorf("option %s=%s: %w", name, value, err)
		}
	}
	return nil
}

// unknown returns the error of an unknown option.
func unknown(name string) error {
	if why := foreignOptions[name]; why != "" {
		return fmt.Errorf("option %s: %s", name, why)
	}
	var names []string
	for _, o := range options {
		names = append(names, o.name)
	}
	return fmt.Errorf("unknown option %q%s; there are %s", name, suggest.Hint(name, names), strings.Join(names, ", "))
}

func (n *Network) addPool(data *ipamData) error {
	pool, err := netip.ParsePrefix(data.Pool)
	if err != nil {
		return fmt.Errorf("subnet %q: %w", data.Pool, err)
	}
	gateway, err := netip.ParsePrefix(data.Gateway)
	if err != nil {
		return fmt.Errorf("gateway %q of subnet %v: %w", data.Gateway, pool, err)
	}
	n.Pools, n.Gateways = append(n.Pools, pool.Masked()), append(n.Gateways, gateway)
	return nil
}

// gateway returns the host's address of a family, "" if there is none or the network is
// internal.
func (n *Network) gateway(v6 bool) string {
	for _, g := range n.Gateways {
		if !n.Internal && g.Addr().Is6() == v6 {
			return g.Addr().String()
		}
	}
	return ""
}

// addr returns an endpoint's address of a family.
func (e *Endpoint) addr(v6 bool) (netip.Addr, bool) {
	for _, a := range e.Addrs {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}
