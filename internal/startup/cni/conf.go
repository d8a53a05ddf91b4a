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
	DownInPlace = "inplace" // do the work in scon-cni's own process
	DownError   = "error"   // refuse ADD

	HandOverSwap = "swap" // put the pooled namespace beneath the runtime's name for its own
	HandOverNone = "none" // make the device in the runtime's namespace

	OwnIPAM = "scon"
)

// Network is the part of a configuration that is the same for all containers of
// a network, and for what is prepared for them.
type Network struct {
	Name string `json:"name"`

	// Kind of the container's primary device; default veth.
	Kind string `json:"kind,omitempty"`
	// Sharing is how many containers have one port of a vSwitch: direct (one),
	// single-tenant (all of a tenant) or multi-tenant (all): startup.txt,
	// figure 4. The first that the kind has is its default.
	Sharing string `json:"sharing,omitempty"`
	// Tenant is whose containers these are; those of different tenants do not
	// reach each other. "" is nobody's, but with single-tenant sharing the
	// network's name.
	Tenant string `json:"tenant,omitempty"`
	// Bridge of kind veth, made if it is missing (default scon0); of kind ovs
	// the vSwitch's, which must be there.
	Bridge string `json:"bridge,omitempty"`
	// VLAN of a port of kind ovs, 1..4094; 0 is a port of all.
	VLAN int `json:"vlan,omitempty"`
	// Master is the host's device of macvlan, macvtap, ipvlan, ipvtap and
	// tc-routing: the vPort.
	Master string `json:"master,omitempty"`
	// Mode of macvlan, macvtap, ipvlan and ipvtap.
	Mode string `json:"mode,omitempty"`
	// MTU of the container's device in bytes, 68..65535; 0 leaves the kernel's.
	MTU int `json:"mtu,omitempty"`
	// IsGateway gives the bridge the gateway's address.
	IsGateway bool `json:"isGateway,omitempty"`
	// IPMasq lets traffic that leaves the subnet go out under the host's address.
	IPMasq bool `json:"ipMasq,omitempty"`
	// Tap wires a tap for a microVM into the container's namespace.
	Tap bool `json:"tap,omitempty"`
	// QoS of each container.
	QoS *QoS `json:"qos,omitempty"`
	// Rules are the security group: with any, what none of them accepts is
	// dropped.
	Rules []Rule `json:"rules,omitempty"`

	IPAM IPAM `json:"ipam"`
}

// QoS are the rates of one container, startup.txt section 4.1.2: average and
// peak, each way. Bits per second and bits, as the capability "bandwidth" has
// them.
type QoS struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`  // to the container
	IngressBurst uint64 `json:"ingressBurst,omitempty"` // default: what the rate sends in 10 ms
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
	PortEnd   uint16 `json:"portEnd,omitempty"`  // the last one of a range
	CIDR      string `json:"cidr,omitempty"`     // of the other side; default any
}

// IPAM says where addresses come from: own ranges, or another plugin.
type IPAM struct {
	Type string `json:"type"`
	ipam.RangeConf
	Ranges [][]ipam.RangeConf `json:"ranges,omitempty"`
	Routes []Route            `json:"routes,omitempty"`
}

// Route is one that a container gets.
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
	// Bandwidth is this container's QoS instead of the network's, nil for none.
	Bandwidth *QoS
	DNS       types.DNS
	Prev      *types.PluginConf // with the result of ADD, for CHECK
	Valid     []types.GCAttachment
	Path      string // CNI_PATH
	Raw       []byte // for a delegate
	Sets      []ipam.Set
	Routes    []netip.Prefix // of IPAM.Routes, in their order
}

// document is what stands in a configuration beside Network.
type document struct {
	types.PluginConf
	Socket    string          `json:"socket"`
	AgentDown string          `json:"agentDown"`
	HandOver  string          `json:"handOver"`
	Args      json.RawMessage `json:"args"`
	// As CNI 1.1.0 called its cni.dev/valid-attachments at first.
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

// checkCapabilities refuses what a runtime would pass on to nobody: a container
// would not have what it asks for, such as an address. A plugin for addresses may
// read what it likes.
func (c *Conf) checkCapabilities(asked map[string]bool) error {
	for name, wanted := range asked {
		switch {
		case !wanted || name == "bandwidth":
		case name == "portMappings":
			return fmt.Errorf("capabilities.portMappings: SCON publishes no ports, want plugin portmap after %s in the list", PluginName)
		case name == "mac" || c.IPAM.Type == OwnIPAM:
			return fmt.Errorf("capabilities.%s: SCON has bandwidth only", name)
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

// parseName reads what a DEL needs of a configuration that no ADD accepts: the
// runtime says DEL after an ADD that was refused, and a container may be there
// from before somebody changed the file.
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

// Digest tells networks apart: two configurations with the same one want the
// same devices, addresses and rules.
func (n *Network) Digest() string {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings, numbers and lists of them
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// mostName is how long a network's name may be: it stands in names of files and
// in comments of rules.
const mostName = 128

// mostSocket is how long the path of a unix socket may be.
const mostSocket = 107

// complete checks values and fills in the defaults.
func (c *Conf) complete() error {
	if c.Name == "" {
		return fmt.Errorf("name is missing: want the network's")
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

// oneOf gives a setting its default, the first of its values, or refuses it.
func oneOf(key string, value *string, values ...string) error {
	if *value == "" {
		*value = values[0]
	}
	if !slices.Contains(values, *value) {
		return fmt.Errorf("%s is %q: want %s", key, *value, strings.Join(values, " or "))
	}
	return nil
}

// checkDevice refuses a name the kernel would refuse, or take for a pattern.
func checkDevice(key, name string) error {
	if err := utils.ValidateInterfaceName(name); err != nil || isPattern(name) {
		return fmt.Errorf("%s is %q: want a device's name of 1..15 bytes without '/', ':', '%%' and blanks", key, name)
	}
	return nil
}

// isPattern tells whether the kernel gives a device another name than this: that
// of eth%d is the first that is free.
func isPattern(name string) bool { return strings.Contains(name, "%") }
