// Package lab builds a gateway with containers out of network namespaces.
//
//	 edge                      device                                c1
//	+-----------+   +-------------------------------+   +---------------+
//	| eth0      |   | eth0                    veth1 |   |          eth0 |
//	| 10.77.0.2 |---| 10.77.0.1      docker0 ---+---|---|    172.17.0.2 |
//	+-----------+   |                172.17.0.1 |   |   +---------------+
//	                |                         veth2 |----- c2 ...
//	                +-------------------------------+
//
// device is the gateway: it forwards between its uplink and its bridge under
// the rules of Options.Rules. edge is a machine outside, device's default
// gateway. c1..cN hang on the bridge as Docker's containers do, with Docker's
// addresses. What runs natively is a process in device, so native is another
// name of that node.
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

// Devices in the nodes, named as on a Docker machine. Container n is on port
// veth<n> of Bridge.
const (
	Uplink = "eth0"    // device's and edge's end of the wire between them
	Bridge = "docker0" // in device
)

// Addresses of the nodes. Labs do not see each other, so all have the same.
var (
	EdgeAddr   = netip.MustParseAddr("10.77.0.2")
	DeviceAddr = netip.MustParseAddr("10.77.0.1")  // on Uplink
	BridgeAddr = netip.MustParseAddr("172.17.0.1") // on Bridge

	uplinkNet = netip.MustParsePrefix("10.77.0.0/24")
	bridgeNet = netip.MustParsePrefix("172.17.0.0/16")
)

// The same of IPv6, in labs that have it.
var (
	EdgeAddr6   = netip.MustParseAddr("fd00:77::2")
	DeviceAddr6 = netip.MustParseAddr("fd00:77::1")
	BridgeAddr6 = netip.MustParseAddr("fd00:17::1")

	uplinkNet6 = netip.MustParsePrefix("fd00:77::/64")
	bridgeNet6 = netip.MustParsePrefix("fd00:17::/64")
)

// ErrDown is wrapped when there is no lab.
var ErrDown = errors.New(`the lab is not up; "scon lab up" builds it`)

// Options say what lab to build.
type Options struct {
	// Prefix begins the names of the namespaces, so that labs stand side by
	// side. "" means DefaultPrefix.
	Prefix string
	// Containers is their number, 0 to MaxContainers.
	Containers int
	// Netkit is how many of the containers, the last ones, have a netkit pair
	// instead of a veth pair, for which it takes Linux 6.7.
	Netkit int
	// Rules is what device filters and translates by: RulesDocker,
	// RulesNone, or the path of a file in iptables-save's format or with an
	// nft script. "" means RulesDocker.
	Rules string
	// NoOffload switches checksum and segmentation offloads off on every
	// link, so that all packets carry a full checksum, which receivers
	// verify, and none is larger than the MTU. It stays until Close.
	NoOffload bool
	// IPv6 gives the nodes addresses of IPv6 as well, and device rules for them:
	// with RulesDocker those of IPv4, with RulesNone the same masquerading, with a
	// file whatever that has.
	IPv6 bool
	// Overlay joins device and edge by VXLAN as well: OverlayFlannel or
	// OverlayDocker. "" means none more. It stays until Close.
	Overlay string
	// Uplink joins device and edge by a second uplink, Second, of a kind of
	// UplinkKinds. "" means none. It stays until Close.
	Uplink string
}

// Lab is a lab that is up.
type Lab struct {
	prefix string
}

// Up builds the lab. One of the same prefix that is there already is adjusted
// to opts: connections through nodes that stay are not cut. After an error
// nothing is left that was not there before.
func Up(opts Options) (*Lab, error) {
	return up(opts, func(string) error { return nil })
}

// Open returns the lab of a prefix ("" means DefaultPrefix) that is up already.
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

// Down removes the lab of a prefix ("" means DefaultPrefix), whole or half
// built. It is no error if there is none.
func Down(prefix string) error {
	return (&Lab{prefix: withDefault(prefix, DefaultPrefix)}).Close()
}

// Close removes the lab. Processes in it live on without a network.
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

// check tells whether the lab has a node.
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
