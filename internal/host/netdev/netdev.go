// Package netdev lists network devices where some come and go all the time, and names new
// ones.
package netdev

import (
	"crypto/rand"
	"errors"
	"net"

	"github.com/vishvananda/netlink"
)

// tries bounds how often a list is read again that a change has interrupted.
const tries = 10

// List returns the devices of the calling thread's network namespace. A list that changed
// while the kernel gave it is read again.
func List() (links []netlink.Link, err error) {
	for range tries {
		if links, err = netlink.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return links, err
}

// RandomMAC returns a locally administered MAC address, for a bridge that would else take
// that of a port.
func RandomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}
