package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/internal/state"
)

// Values of Conf.
const (
	DownInPlace = "inplace" // execute the verb in a process of its own
	DownError   = "error"   // refuse ADD

	HandOverSwap = "swap" // mount the pooled namespace beneath the runtime's, at its path
	HandOverNone = "none" // make the device in the runtime's namespace

	OwnIPAM = "scon"
)

// Network is what a configuration has in common for all containers of a network.
type Network struct {
	Name string `json:"name"`

	// Kind is the kind of a container's primary device; default veth.
	Kind string `json:"kind,omitempty"`
	// Sharing is the set of containers that share a vPort of a vSwitch: direct (one
	// container), single-tenant (all of a tenant) or multi-tenant (all), as in
	// Understanding Network Startup for Secure Containers, figure 4. The default is the
	// first that the kind supports.
	Sharing string `json:"sharing,omitempty"`
	// Tenant is the owner of the containers; containers of different tenants cannot
	// reach each other. "" is no tenant; with single-tenant sharing it is the network's
	// name.
	Tenant string `json:"tenant,omitempty"`
	// Bridge of kind veth, made if missing (default scon0). Of kind ovs it is a bridge
	// of the vSwitch, which must exist.
	Bridge string `json:"bridge,omitempty"`
	// VLAN of a port of kind ovs, 1..4094; 0 is untagged.
	VLAN int `json:"vlan,omitempty"`
	// Master is the device of the host below macvlan, macvtap, ipvlan and ipvtap, and
	// the vPort of tc-routing.
	Master string `json:"master,omitempty"`
	// Mode of macvlan, macvtap, ipvlan and ipvtap.
	Mode string `json:"mode,omitempty"`
	// MTU of the container's device in bytes, 68..65535; 0 is the kernel's default.
	MTU int `json:"mtu,omitempty"`
	// IsGateway adds the gateway's address to the bridge.
	IsGateway bool `json:"isGateway,omitempty"`
	// IPMasq masquerades traffic that leaves the subnet.
	IPMasq bool `json:"ipMasq,omitempty"`
	// Tap makes a tap for a microVM in the container's namespace.
	Tap bool `json:"tap,omitempty"`
	// QoS of each container, nil for none.
	QoS *QoS `json:"qos,omitempty"`
	// Rules are the security group. With at least one rule, packets that none accepts
	// are dropped.
	Rules []Rule `json:"rules,omitempty"`

	IPAM IPAM `json:"ipam"`
}

// QoS is the rates of one container: average and peak in each direction (Understanding
// Network Startup for Secure Containers, section 4.1.2). Units are bits per second and
// bits, as in the capability "bandwidth".
type QoS struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`  // to the container
	IngressBurst uint64 `json:"ingressBurst,omitempty"` // default: 10 ms at the rate
	IngressPeak  uint64 `json:"ingressPeak,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
	EgressPeak   uint64 `json:"egressPeak,omitempty"`
}

// Rule accepts traffic of a container.
type Rule struct {
	Direction string `json:"direction"`          // ingress or egress
	Protocol  string `json:"protocol,omitempty"` // tcp, udp or icmp; default any
	Port      uint16 `json:"port,omitempty"`     // destination; 0 is any
	PortEnd   uint16 `json:"portEnd,omitempty"`  // last port of a range
	CIDR      string `json:"cidr,omitempty"`     // of the peer; default any
}

// IPAM is the source of addresses: own ranges, or another plugin.
type IPAM struct {
	Type string `json:"type"`
	ipam.RangeConf
	Ranges [][]ipam.RangeConf `json:"ranges,omitempty"`
	Routes []Route            `json:"routes,omitempty"`
}

// Route is a route of a container.
type Route struct {
	Dst string `json:"dst"`
	GW  string `json:"gw,omitempty"` // default: the gateway of its family
}

// Conf is the configuration of one request.
type Conf struct {
	Network
	CNIVersion string
	Socket     string
	AgentDown  string // DownInPlace or DownError
	HandOver   string // HandOverSwap or HandOverNone
	// Bandwidth is this container's QoS instead of the network's; nil uses the network's.
	Bandwidth *QoS
	DNS       types.DNS
	Prev      *types.PluginConf // with the result of ADD, for CHECK
	Valid     []types.GCAttachment
	Path      string // CNI_PATH
	Raw       []byte // for another IPAM plugin
	Sets      []ipam.Set
	Routes    []netip.Prefix // of IPAM.Routes, in their order
}

// document has the fields of a configuration beside Network.
type document struct {
	types.PluginConf
	Socket    string          `json:"socket"`
	AgentDown string          `json:"agentDown"`
	HandOver  string          `json:"handOver"`
	Args      json.RawMessage `json:"args"`
	// Early name of cni.dev/valid-attachments in CNI 1.1.0.
	Attachments   []types.GCAttachment `json:"cni.dev/attachments"`
	RuntimeConfig struct {
		Bandwidth *QoS `json:"bandwidth"`
	} `json:"runtimeConfig"`
}

// Parse reads and checks a configuration.
func Parse(input []byte) (*Conf, error) {
	var d document
	if err := json.Unmarshal(input, &d); err != nil {
		return nil, undecoded(input, err)
	}
	if err := version.ParsePrevResult(&d.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	v, err := new(version.ConfigDecoder).Decode(input)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	c := &Conf{
		CNIVersion: v, Socket: d.Socket, AgentDown: d.AgentDown, HandOver: d.HandOver, DNS: d.DNS,
		Prev: &d.PluginConf, Valid: d.ValidAttachments, Raw: input,
	}
	if c.Valid == nil {
		c.Valid = d.Attachments
	}
	if err := json.Unmarshal(input, &c.Network); err != nil {
		return nil, undecoded(input, err)
	}
	if d.RuntimeConfig.Bandwidth != nil {
		c.Bandwidth = d.RuntimeConfig.Bandwidth
	}
	if err := checkKeys(input); err != nil {
		return nil, invalid(err)
	}
	if err := c.complete(); err != nil {
		return nil, invalid(err)
	}
	if err := c.checkCapabilities(d.Capabilities); err != nil {
		return nil, invalid(err)
	}
	return c, nil
}

// checkCapabilities refuses capabilities that no plugin of the network reads: the
// container would lack what its user requested, such as an address. Another IPAM plugin
// may read any.
func (c *Conf) checkCapabilities(asked map[string]bool) error {
	for name, wanted := range asked {
		switch {
		case !wanted || name == "bandwidth":
		case name == "portMappings":
			return fmt.Errorf("capabilities.portMappings: SCON publishes no ports: want plugin portmap after %s in the list", PluginName)
		case name == "mac" || c.IPAM.Type == OwnIPAM:
			return fmt.Errorf("capabilities.%s: SCON supports bandwidth only", name)
		}
	}
	return nil
}

func invalid(err error) error {
	return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
}

func isInvalid(err error) bool {
	var e *types.Error
	return errors.As(err, &e) && e.Code == types.ErrInvalidNetworkConfig
}

// parseName parses what DEL needs of a configuration that ADD refuses: a runtime
// sends DEL after a refused ADD, and an attachment may be older than an invalid change
// of the file.
func parseName(input []byte) (*Conf, error) {
	var d document
	if err := json.Unmarshal(input, &d); err != nil {
		return nil, undecoded(input, err)
	}
	v, err := new(version.ConfigDecoder).Decode(input)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	c := &Conf{CNIVersion: v, Socket: d.Socket, AgentDown: DownError, Raw: input}
	c.Name, c.Kind, c.IPAM.Type = d.Name, Veth, OwnIPAM
	return c, nil
}

// Digest identifies a configuration: two with the same digest need the same devices,
// addresses and rules.
func (n *Network) Digest() string {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings, numbers and lists of them
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// mostName limits a network's name, which file names and rule comments contain.
const mostName = 128

// mostSocket limits the path of a unix socket.
const mostSocket = 107

// complete checks values and sets the defaults.
func (c *Conf) complete() error {
	if c.Name == "" {
		return fmt.Errorf("name is missing: want the network's name")
	}
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		return err
	}
	if len(c.Name) > mostName {
		return fmt.Errorf("name has %d bytes: want at most %d", len(c.Name), mostName)
	}
	if c.Socket != "" && (!filepath.IsAbs(c.Socket) || len(c.Socket) > mostSocket) {
		return fmt.Errorf("socket is %q: want an absolute path of at most %d bytes, such as %s", c.Socket, mostSocket, state.Startup.Socket(state.DefaultDir))
	}
	if err := oneOf("agentDown", &c.AgentDown, DownInPlace, DownError); err != nil {
		return err
	}
	if err := oneOf("handOver", &c.HandOver, HandOverSwap, HandOverNone); err != nil {
		return err
	}
	if err := c.completeKind(); err != nil {
		return err
	}
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		return fmt.Errorf("mtu is %d: want bytes, 68..65535, or 0 for the kernel's", c.MTU)
	}
	for i, r := range c.Rules {
		if err := r.check(); err != nil {
			return fmt.Errorf("rules[%d]: %w", i, err)
		}
	}
	if err := errors.Join(c.QoS.check(), c.Bandwidth.check()); err != nil {
		return err
	}
	return c.completeIPAM()
}

// oneOf sets the default, the first value, or refuses a value that is not listed.
func oneOf(key string, value *string, values ...string) error {
	if *value == "" {
		*value = values[0]
	}
	if !slices.Contains(values, *value) {
		return fmt.Errorf("%s is %q: want %s", key, *value, strings.Join(values, " or "))
	}
	return nil
}

// checkDevice refuses a name that the kernel refuses or treats as a pattern.
func checkDevice(key, name string) error {
	if err := utils.ValidateInterfaceName(name); err != nil || isPattern(name) {
		return fmt.Errorf("%s is %q: want a device name of 1..15 bytes without '/', ':', '%%' and blanks", key, name)
	}
	return nil
}

// isPattern reports whether the kernel treats a name as a pattern: eth%d is the first
// free name.
func isPattern(name string) bool { return strings.Contains(name, "%") }
