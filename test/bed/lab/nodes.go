package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/host/netns"
)

// Nodes of every lab.
const (
	Edge   = "edge"
	Device = "device"
)

// Container returns the name of container n, counted from 1.
func Container(n int) string {
	return "c" + strconv.Itoa(n)
}

// ContainerAddr returns the address of container n, counted from 1.
func ContainerAddr(n int) netip.Addr {
	a := BridgeAddr.As4()
	a[3] += byte(n)
	return netip.AddrFrom4(a)
}

// ContainerAddr6 returns the IPv6 address of container n, counted from 1.
func ContainerAddr6(n int) netip.Addr {
	a := BridgeAddr6.As16()
	a[15] += byte(n)
	return netip.AddrFrom16(a)
}

// Port returns the name of container n's bridge port in device.
func Port(n int) string {
	return "veth" + strconv.Itoa(n)
}

// Nodes returns the names of the existing nodes: edge, device, c1...
func (l *Lab) Nodes() ([]string, error) {
	dir := filepath.Dir(l.Node(Edge))
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var nodes []string
	for _, file := range files {
		node, ok := strings.CutPrefix(file.Name(), l.prefix)
		if ok && order(node) >= 0 {
			nodes = append(nodes, node)
		}
	}
	slices.SortFunc(nodes, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	return nodes, nil
}

// Addr returns a node's address, for device the one on its uplink.
func (l *Lab) Addr(node string) netip.Addr {
	switch n := number(node); {
	case n > 0:
		return ContainerAddr(n)
	case node == Edge:
		return EdgeAddr
	default:
		return DeviceAddr
	}
}

// order returns a node's position in the list of nodes, -1 for an unknown name.
func order(node string) int {
	if i := slices.Index([]string{Edge, Device}, node); i >= 0 {
		return i
	}
	if n := number(node); n > 0 {
		return 1 + n
	}
	return -1
}

// number returns the n of a container's name, or 0 if it is none.
func number(node string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(node, "c"))
	if err != nil || n < 1 || n > MaxContainers || node != Container(n) {
		return 0
	}
	return n
}

// namespace returns the name of a node's namespace.
func (l *Lab) namespace(node string) string {
	if node == "native" {
		node = Device
	}
	return l.prefix + node
}

// remove removes a node and its links: a process in it keeps the namespace, but not
// the peers of its veth devices.
func (l *Lab) remove(node string) error {
	var errs []error
	err := netns.Do(l.Node(node), removeLinks)
	// An interrupted creation leaves a name without a namespace.
	if err != nil && !errors.Is(err, netns.ErrNotNetns) {
		errs = append(errs, fmt.Errorf("remove %s: %w", node, err))
	}
	if err := netns.Delete(l.namespace(node)); err != nil {
		errs = append(errs, fmt.Errorf("remove %s: %w", node, err))
	}
	return errors.Join(errs...)
}
