package redact

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Pseudonyms of addresses keep networks: two addresses that have their first n bits in
// common have pseudonyms that do, too. Private addresses stay private, and in 10.0.0.0/8,
// 172.16.0.0/12 or 192.168.0.0/16, if they were. Others get addresses that nobody has:
// 240.0.0.0/4, and 3fff::/20, which is for documentation.

// classes are networks whose addresses keep the network's bits.
var classes = prefixes("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4",
	"fc00::/8", "fd00::/8", "fe80::/64", "ff00::/16", "ff01::/16", "ff02::/16", "ff05::/16")

// same are networks whose addresses are the same on all machines.
var same = prefixes("0.0.0.0/32", "127.0.0.0/8", "224.0.0.0/24", "255.255.255.255/32",
	"::/128", "::1/128", "ff02::/120")

// nobodys are where the pseudonyms of public addresses are, by family.
var nobodys = map[bool]netip.Prefix{true: netip.MustParsePrefix("240.0.0.0/4"), false: netip.MustParsePrefix("3fff::/20")}

func prefixes(all ...string) (list []netip.Prefix) {
	for _, s := range all {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

// within returns the network of a list that has an address.
func within(list []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	for _, p := range list {
		if p.Contains(a) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// Addr returns the pseudonym of an address without a zone.
func (r *Redactor) Addr(a netip.Addr) netip.Addr {
	if a.Is4In6() {
		return netip.AddrFrom16(r.Addr(a.Unmap()).As16())
	}
	if _, ok := within(same, a); ok {
		return a
	}
	p, known := r.addrs[a]
	if !known {
		p = r.scramble(a)
		r.addrs[a] = p
	}
	return p
}

// scramble flips each bit below the class by a function of the key and the bits above it.
func (r *Redactor) scramble(a netip.Addr) netip.Addr {
	into, ok := within(classes, a)
	if !ok {
		into = nobodys[a.Is4()]
	}
	bits, head := a.AsSlice(), into.Addr().AsSlice()
	out := append([]byte(nil), bits...)
	for i := range a.BitLen() {
		mask := byte(0x80) >> (i % 8)
		if i < into.Bits() {
			out[i/8] = out[i/8]&^mask | head[i/8]&mask
			continue
		}
		above, _ := a.Prefix(i) // i is in range
		sum := sha256.Sum256(append(append(r.key[:], byte(i)), above.Addr().AsSlice()...))
		if sum[0]&1 != 0 {
			out[i/8] ^= mask
		}
	}
	p, _ := netip.AddrFromSlice(out) // it has a's length
	return p
}

// prefix returns the pseudonym of an address with the length of its network. Of a network
// that many machines have, such as 10.0.0.0/8, the pseudonym is the network.
func (r *Redactor) prefix(a netip.Addr, bits int) netip.Addr {
	p, err := a.Prefix(bits)
	if err != nil || p.Addr() != a { // an address in its network
		return r.Addr(a)
	}
	into, private := within(classes, a)
	if private && bits <= into.Bits() || !private && bits < nobodys[a.Is4()].Bits()+4 {
		return a
	}
	p, _ = r.Addr(a).Prefix(bits) // bits are in range
	return p.Addr()
}

// hardware returns the pseudonym of a hardware address, in its length.
func (r *Redactor) hardware(s string) string {
	s = strings.ToLower(s)
	if strings.Trim(s, "0:") == "" || strings.Trim(s, "f:") == "" || strings.HasPrefix(s, "01:80:c2:00:00:0") {
		return s
	}
	sum := sha256.Sum256(append(r.key[:], s...))
	out := "02"
	for _, b := range sum[:strings.Count(s, ":")] {
		out += fmt.Sprintf(":%02x", b)
	}
	return out
}

var (
	hardware = regexp.MustCompile(`^([0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}`)
	ipv6     = regexp.MustCompile(`^[0-9a-fA-F]{0,4}:[0-9a-fA-F:.]{0,44}`)
	ipv4     = regexp.MustCompile(`^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}`)
	length   = regexp.MustCompile(`^/[0-9]{1,3}`)
)

// address returns the pseudonym of the address, or network, that s begins with, and the
// length of what it replaces, 0 if s begins with none.
func (r *Redactor) address(s string) (replaced string, n int) {
	if m := hardware.FindString(s); ends(s, m) {
		return r.hardware(m), len(m)
	}
	m := strings.TrimRight(ipv6.FindString(s), ".")
	a, err := netip.ParseAddr(m)
	if err != nil { // "fe80::1: unreachable"
		m = strings.TrimSuffix(m, ":")
		a, err = netip.ParseAddr(m)
	}
	if err != nil {
		m = ipv4.FindString(s)
		a, err = netip.ParseAddr(m)
	}
	if err != nil || !ends(s, m) {
		return "", 0
	}
	rest := s[len(m):]
	if l := length.FindString(rest); ends(rest, l) {
		if bits, err := strconv.Atoi(l[1:]); err == nil {
			return r.prefix(a, bits).String() + l, len(m) + len(l)
		}
	}
	if mask := ipv4.FindString(strings.TrimPrefix(rest, "/")); rest != "" && rest[0] == '/' && ends(rest[1:], mask) {
		if bits, ok := maskBits(mask); ok {
			return r.prefix(a, bits).String() + "/" + mask, len(m) + 1 + len(mask)
		}
	}
	return r.Addr(a).String(), len(m)
}

// ends reports whether s begins with the whole word m, and m is not empty.
func ends(s, m string) bool {
	if m == "" {
		return false
	}
	rest := s[len(m):]
	return rest == "" || rest[0] == '-' || !isWord(rest[0]) && rest[0] != '.' ||
		rest[0] == '.' && (len(rest) == 1 || !isWord(rest[1]))
}

// maskBits returns the length of a network's mask, as iptables prints some.
func maskBits(mask string) (bits int, ok bool) {
	a, err := netip.ParseAddr(mask)
	if err != nil {
		return 0, false
	}
	b := a.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	for v&(1<<31) != 0 {
		v <<= 1
		bits++
	}
	return bits, v == 0
}
