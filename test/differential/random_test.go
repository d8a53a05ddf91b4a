package differential

import (
	"encoding/binary"
	"regexp"
	"strconv"

	"github.com/gopacket/gopacket/layers"
)

// chance masks values that device's kernel chooses at random.
type chance struct {
	ports map[uint16]bool // ports of the case; the kernel chose all others
	reset map[uint16]bool // client ports of connections that were reset
	ends  bool            // conntrack may be told late of which ends have sent their last data
}

var portInRule = regexp.MustCompile(`(?:port |:)(\d+)`)

func chanceIn(c *Case) chance {
	ports := make(map[uint16]bool)
	for _, c := range c.Conns {
		ports[c.Src.Port()], ports[c.Dst.Port()] = true, true
	}
	for _, r := range c.Rules.Rules {
		for _, words := range portInRule.FindAllStringSubmatch(r.Text, -1) {
			if n, err := strconv.ParseUint(words[1], 10, 16); err == nil {
				ports[uint16(n)] = true
			}
		}
	}
	reset := make(map[uint16]bool)
	for _, s := range c.Steps {
		for _, it := range s.Items {
			if it.Kind == loneRST {
				reset[c.Conns[it.Conn].Src.Port()] = true
			}
		}
	}
	return chance{ports, reset, c.Liberal}
}

// alike reports whether two packets differ in random values only.
func (k chance) alike(a, b captured) bool {
	if k.known(a) == k.known(b) {
		return true
	}
	// The kernel may have chosen a port that the case also has.
	all := chance{}
	return (k.chosen(a) || k.chosen(b)) && all.known(a) == all.known(b)
}

// chosen reports whether a packet has a port that the case does not have.
func (k chance) chosen(c captured) bool {
	b := []byte(c.data)
	return len(b) >= ethLen+ipLen && k.maskPorts(b, ethLen)
}

// known masks the id of ICMP packets, which device may have sent itself, and ports
// that NAT chose because the preferred one was in use.
func (k chance) known(c captured) captured {
	b := []byte(c.data)
	if isIPv6(b) && len(b) >= ethLen+ip6Len+8 {
		k.known6(b)
		c.data = string(b)
		return c
	}
	if len(b) < ethLen+ipLen || b[12] != 8 || b[13] != 0 {
		return c
	}
	at := ethLen + int(b[ethLen]&15)*4
	if b[ethLen+9] != byte(layers.IPProtocolICMPv4) {
		k.maskPorts(b, ethLen)
	} else {
		mask(b, ethLen+4, 2)
		mask(b, ethLen+10, 2)
		if quoted := at + 8; len(b) >= quoted+ipLen && isICMPError(b[at]) && k.maskPorts(b, quoted) {
			mask(b, at+2, 2)
		}
	}
	c.data = string(b)
	return c
}

// known6 does the same for IPv6, where fragments have an identification.
func (k chance) known6(b []byte) {
	const identification = 4 // in the fragment header
	at := ethLen + ip6Len
	switch protoOf(b) {
	case layers.IPProtocolIPv6Fragment:
		mask(b, at+identification, 4)
		k.maskPorts(b, ethLen)
	case layers.IPProtocolICMPv6:
		quoted := at + 8
		if isError := b[at] < 128; isError && len(b) >= quoted+ip6Len && k.maskPorts(b, quoted) {
			mask(b, at+2, 2)
		}
	default:
		k.maskPorts(b, ethLen)
	}
}

func isICMPError(kind byte) bool {
	return kind == 3 || kind == 4 || kind == 5 || kind == 11 || kind == 12
}

// behindExtensions skips the IPv6 extension headers that begin at an offset,
// and returns the offset and protocol behind them.
func behindExtensions(b []byte, at int, proto layers.IPProtocol) (int, layers.IPProtocol) {
	for at+8 <= len(b) && (proto == layers.IPProtocolIPv6HopByHop || proto == layers.IPProtocolIPv6Routing || proto == layers.IPProtocolIPv6Destination) {
		at, proto = at+8*(1+int(b[at+1])), layers.IPProtocol(b[at])
	}
	return at, proto
}

// maskPorts masks the ports of the IP packet at an offset that the case does
// not name, and the checksums over them.
func (k chance) maskPorts(b []byte, ip int) (masked bool) {
	at, checksum, proto := ip+ip6Len, 0, layers.IPProtocol(b[ip+6])
	if b[ip]>>4 == 6 {
		at, proto = behindExtensions(b, at, proto)
	}
	switch {
	case b[ip]>>4 != 6:
		if binary.BigEndian.Uint16(b[ip+6:])&0x1fff != 0 {
			return false // only the first fragment has ports
		}
		at, proto = ip+int(b[ip]&15)*4, layers.IPProtocol(b[ip+9])
	case proto == layers.IPProtocolIPv6Fragment && len(b) >= at+8:
		if binary.BigEndian.Uint16(b[at+2:])&0xfff8 != 0 {
			return false
		}
		at, proto = at+8, layers.IPProtocol(b[at])
	}
	switch proto {
	case layers.IPProtocolTCP:
		checksum = at + 16
	case layers.IPProtocolUDP:
		checksum = at + 6
	default:
		return false
	}
	for _, at := range [2]int{at, at + 2} {
		if at+2 <= len(b) && !k.ports[binary.BigEndian.Uint16(b[at:])] {
			mask(b, at, 2)
			masked = true
		}
	}
	if masked {
		mask(b, checksum, 2)
	}
	return masked
}

// mask zeroes up to n bytes.
func mask(b []byte, at, n int) {
	for i := at; i < min(at+n, len(b)); i++ {
		b[i] = 0
	}
}
