package ipam

import (
	"fmt"
	"net/netip"
)

// RangeConf is a range in a network configuration, with the key names of the host-local
// plugin.
type RangeConf struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart,omitempty"` // default: the first usable address
	RangeEnd   string `json:"rangeEnd,omitempty"`   // default: the last usable address
	Gateway    string `json:"gateway,omitempty"`    // default: the first usable address
}

// Range checks the configuration and sets the defaults.
func (c RangeConf) Range() (r Range, err error) {
	if r.Subnet, err = netip.ParsePrefix(c.Subnet); err != nil {
		return r, fmt.Errorf("subnet is %q: want a subnet such as 10.88.0.0/16", c.Subnet)
	}
	if r.Subnet.Addr().Is4In6() {
		return r, fmt.Errorf("subnet is %q: want IPv4 without ::ffff: in front", c.Subnet)
	}
	if r.Subnet != r.Subnet.Masked() {
		return r, fmt.Errorf("subnet is %q: host bits are set, did you mean %v?", c.Subnet, r.Subnet.Masked())
	}
	if a := r.Subnet.Addr(); r.Subnet.Bits() == 0 || a.IsLoopback() || a.IsMulticast() || a.Is6() && a.IsLinkLocalUnicast() {
		return r, fmt.Errorf("subnet is %q: its addresses are not usable for containers, want one such as 10.88.0.0/16", c.Subnet)
	}
	host := r.Subnet.Addr().BitLen() - r.Subnet.Bits()
	if host < 2 {
		return r, fmt.Errorf("subnet is %q: has no room for a gateway and a container, want a length of at most /%d", c.Subnet, r.Subnet.Addr().BitLen()-2)
	}
	first, last := r.Subnet.Addr().Next(), lastOf(r.Subnet)
	if last.Is4() {
		last = last.Prev() // broadcast
	}
	if r.Gateway, err = c.within(r.Subnet, "gateway", c.Gateway, first); err != nil {
		return r, err
	}
	if r.Start, err = c.within(r.Subnet, "rangeStart", c.RangeStart, first); err != nil {
		return r, err
	}
	if r.End, err = c.within(r.Subnet, "rangeEnd", c.RangeEnd, last); err != nil {
		return r, err
	}
	for _, f := range []struct {
		key  string
		addr netip.Addr
	}{{"gateway", r.Gateway}, {"rangeStart", r.Start}, {"rangeEnd", r.End}} {
		if f.addr.Less(first) || last.Less(f.addr) {
			return r, fmt.Errorf("%s is %q: not a host address of the subnet %v, want %v..%v", f.key, f.addr, r.Subnet, first, last)
		}
	}
	if r.End.Less(r.Start) {
		return r, fmt.Errorf("rangeEnd %v is before rangeStart %v", r.End, r.Start)
	}
	if r.Start == r.End && r.Start == r.Gateway {
		return r, fmt.Errorf("rangeStart is %q: it is the gateway's, and the only address of the range", r.Start)
	}
	return r, nil
}

func (c RangeConf) within(subnet netip.Prefix, key, value string, otherwise netip.Addr) (netip.Addr, error) {
	if value == "" {
		return otherwise, nil
	}
	addr, err := netip.ParseAddr(value)
	if err != nil || !subnet.Contains(addr) {
		return addr, fmt.Errorf("%s is %q: want an address of the subnet %v", key, value, subnet)
	}
	return addr, nil
}

// lastOf returns the highest address of a subnet.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
