// Package lab builds a gateway with containers from network namespaces.
//
//	 edge                      device                                c1
//	+-----------+   +-------------------------------+   +---------------+
//	| eth0      |   | eth0                    veth1 |   |          eth0 |
//	| 10.77.0.2 |---| 10.77.0.1      docker0 ---+---|---|    172.17.0.2 |
//	+-----------+   |                172.17.0.1 |   |   +---------------+
//	                |                         veth2 |----- c2 ...
//	                +-------------------------------+
//
// device is the gateway: it forwards between its uplink and its bridge with the
// rules of Options.Rules. edge is an external machine, the paper's edge server, and
// device's default gateway.
// c1..cN are attached to the bridge like Docker's containers, with Docker's
// addresses. A native process runs in device, so native is an alias of that node.
package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/scon-project/scon/internal/host/netns"
)

// DefaultPrefix begins the namespaces' names unless Options say otherwise.
const DefaultPrefix = "scon-"

// MaxContainers is the largest Options.Containers.
const MaxContainers = 200

// Devices in the nodes, named as on a Docker host. Container n is attached to port
// veth<n> of Bridge.
const (
	Uplink = "eth0"    // both ends of the veth pair between device and edge
	Bridge = "docker0" // in device
)

// Addresses of the nodes. Labs are isolated from each other, so all use the same.
var (
	EdgeAddr   = netip.MustParseAddr("10.77.0.2")
	DeviceAddr = netip.MustParseAddr("10.77.0.1")  // on Uplink
	BridgeAddr = netip.MustParseAddr("172.17.0.1") // on Bridge

	uplinkNet = netip.MustParsePrefix("10.77.0.0/24")
	bridgeNet = netip.MustParsePrefix("172.17.0.0/16")
)

// IPv6 addresses, in labs with IPv6.
var (
	EdgeAddr6   = netip.MustParseAddr("fd00:77::2")
	DeviceAddr6 = netip.MustParseAddr("fd00:77::1")
	BridgeAddr6 = netip.MustParseAddr("fd00:17::1")

	uplinkNet6 = netip.MustParsePrefix("fd00:77::/64")
	bridgeNet6 = netip.MustParsePrefix("fd00:17::/64")
)

// ErrDown is wrapped when there is no lab.
var ErrDown = errors.New(`the lab is not up; "scon lab up" builds it`)

// Options of a lab.
type Options struct {
	// Prefix of the names of the namespaces, so that several labs can exist. ""
	// means DefaultPrefix.
	Prefix string
	// Containers is the number of containers, 0 to MaxContainers.
	Containers int
	// Netkit is the number of containers, the last ones, with a netkit pair instead
	// of a veth pair. It requires Linux 6.7.
	Netkit int
	// Rules are device's filter and NAT rules: RulesDocker, RulesNone, or the path
	// of a file in iptables-save's format or with an nft script. "" means
	// RulesDocker.
	Rules string
	// NoOffload disables checksum and segmentation offloads on every link, so that
	// all packets carry a full checksum, which receivers verify, and none is larger
	// than the MTU. It applies until Close.
	NoOffload bool
	// IPv6 adds IPv6 addresses to the nodes and IPv6 rules to device: with
	// RulesDocker those of IPv4, with RulesNone the same masquerading, with a file
	// its content.
	IPv6 bool
	// Overlay also connects device and edge by VXLAN: OverlayFlannel or
	// OverlayDocker; "" means no overlay. It applies until Close.
	Overlay string
	// Uplink also connects device and edge by a second uplink, Second, of a kind in
	// UplinkKinds; "" means none. It applies until Close.
	Uplink string
}

// Lab is an existing lab.
type Lab struct {
	prefix string
}

// Up builds the lab, or changes an existing one of the same prefix to match opts:
// connections through nodes that stay are not cut. After an error nothing new is left.
func Up(opts Options) (*Lab, error) {
	return up(opts, func(string) error { return nil })
}

// Open returns the existing lab of a prefix ("" means DefaultPrefix).
// The error wraps ErrDown if there is none.
func Open(prefix string) (*Lab, error) {
	l := &Lab{prefix: withDefault(prefix, DefaultPrefix)}
	nodes, err := l.Nodes()
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, ErrDown
	}
	return l, nil
}

// Down removes the lab of a prefix ("" means DefaultPrefix), also a partially built
// one. A missing lab is no error.
func Down(prefix string) error {
	return (&Lab{prefix: withDefault(prefix, DefaultPrefix)}).Close()
}

// Close removes the lab. Its processes continue without a network.
func (l *Lab) Close() error {
	nodes, err := l.Nodes()
	if err != nil {
		return err
	}
	var errs []error
	for _, node := range nodes {
		errs = append(errs, l.remove(node))
	}
	return errors.Join(errs...)
}

// Node returns the path of a node's network namespace.
func (l *Lab) Node(name string) string {
	return netns.Path(l.namespace(name))
}

// Do calls fn in a node; see netns.Do.
func (l *Lab) Do(node string, fn func() error) error {
	if err := l.check(node); err != nil {
		return err
	}
	return netns.Do(l.Node(node), fn)
}

// Start starts cmd in a node. The caller waits for it.
func (l *Lab) Start(node string, cmd *exec.Cmd) error {
	return l.Do(node, cmd.Start)
}

// Exec runs cmd in a node and waits for it. An exit status other than 0 is an
// *exec.ExitError.
func (l *Lab) Exec(node string, cmd *exec.Cmd) error {
	if err := l.Start(node, cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Enter moves the calling, locked thread into a node for good; see netns.Enter.
func (l *Lab) Enter(node string) error {
	if err := l.check(node); err != nil {
		return err
	}
	return netns.Enter(l.Node(node))
}

// check returns an error if the lab does not have the node.
func (l *Lab) check(node string) error {
	if _, err := os.Stat(l.Node(node)); err == nil {
		return nil
	}
	nodes, err := l.Nodes()
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return ErrDown
	}
	return fmt.Errorf("the lab has no node %q, but %s", node, strings.Join(nodes, ", "))
}

// withDefault returns value, or def if that is empty.
func withDefault(value, def string) string {
	if value == "" {
		return def
	}
	return value
}
