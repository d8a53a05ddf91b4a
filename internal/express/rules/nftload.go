package rules

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Metadata and connection keys of nftables, and what is known of them.

// headerField is a range of bytes of a packet's headers.
type headerField struct {
	base           uint32
	offset, length int
}

const (
	link      = unix.NFT_PAYLOAD_LL_HEADER
	network   = unix.NFT_PAYLOAD_NETWORK_HEADER
	transport = unix.NFT_PAYLOAD_TRANSPORT_HEADER
)

var etherTypeField = headerField{link, 12, 2}

var namedFields = map[headerField]source{
	{link, 0, 6}:       {"ether daddr", hex},
	{link, 6, 6}:       {"ether saddr", hex},
	etherTypeField:     {"ether type", hex},
	{network, 1, 1}:    {"ip tos", hex},
	{network, 2, 2}:    {"ip length", bigEndian},
	{network, 4, 2}:    {"ip id", bigEndian},
	{network, 6, 2}:    {"ip frag-off", hex},
	{network, 8, 1}:    {"ip ttl", bigEndian},
	{network, 9, 1}:    {"ip protocol", protocol},
	{network, 12, 1}:   {"ip saddr", prefix},
	{network, 12, 2}:   {"ip saddr", prefix},
	{network, 12, 3}:   {"ip saddr", prefix},
	{network, 12, 4}:   {"ip saddr", address},
	{network, 16, 1}:   {"ip daddr", prefix},
	{network, 16, 2}:   {"ip daddr", prefix},
	{network, 16, 3}:   {"ip daddr", prefix},
	{network, 16, 4}:   {"ip daddr", address},
	{network, 12, 8}:   {"ip saddr . ip daddr", hex},
	{transport, 0, 2}:  {"sport", bigEndian},
	{transport, 2, 2}:  {"dport", bigEndian},
	{transport, 0, 4}:  {"ports", hex},
	{transport, 13, 1}: {"tcp flags", hex},
	{transport, 14, 2}: {"tcp window", bigEndian},
}

// namedFields6 are those of the IPv6 header.
var namedFields6 = map[headerField]source{
	{network, 0, 2}:   {"ip6 dscp", hex},
	{network, 4, 2}:   {"ip6 length", bigEndian},
	{network, 6, 1}:   {"ip6 nexthdr", protocol},
	{network, 7, 1}:   {"ip6 hoplimit", bigEndian},
	{network, 8, 16}:  {"ip6 saddr", address},
	{network, 24, 16}: {"ip6 daddr", address},
}

// source names a field as nft does, in packets of a family.
func (p headerField) source(f family) source {
	named := namedFields
	if f == ipv6 && p.base == network {
		named = namedFields6
	}
	if s, ok := named[p]; ok {
		return s
	}
	name := "inner"
	if names := [...]string{link: "ll", network: "nh", transport: "th"}; int(p.base) < len(names) {
		name = names[p.base]
	}
	return source{fmt.Sprintf("payload @%s,%d,%d", name, 8*p.offset, 8*p.length), hex}
}

// metaKey is what is known of a packet's metadata.
type metaKey struct {
	name   string
	length int // bytes
	format func([]byte) string
	load   func(*machine, []octet)
}

// layer3Name is what nft calls the family of a packet.
const layer3Name = "meta nfproto"

// metaKeys are the known ones (enum nft_meta_keys).
var metaKeys = map[uint32]metaKey{
	unix.NFT_META_LEN:         {"meta length", 4, hostEndian, varying},
	unix.NFT_META_PROTOCOL:    {"meta protocol", 2, hex, protocolOfLink},
	unix.NFT_META_PRIORITY:    {"meta priority", 4, hostEndian, varying},
	unix.NFT_META_MARK:        {packetMarkName, 4, hostEndian, (*machine).loadPacketMark},
	unix.NFT_META_IIF:         {"iif", 4, hostEndian, func(m *machine, to []octet) { m.loadIndex(m.iif, to) }},
	unix.NFT_META_OIF:         {"oif", 4, hostEndian, func(m *machine, to []octet) { m.loadIndex(m.oif, to) }},
	unix.NFT_META_IIFNAME:     {"iifname", unix.IFNAMSIZ, deviceName, func(m *machine, to []octet) { m.loadName(m.iif, to) }},
	unix.NFT_META_OIFNAME:     {"oifname", unix.IFNAMSIZ, deviceName, func(m *machine, to []octet) { m.loadName(m.oif, to) }},
	unix.NFT_META_IIFTYPE:     {"iiftype", 2, hex, unknown},
	unix.NFT_META_OIFTYPE:     {"oiftype", 2, hex, unknown},
	unix.NFT_META_SKUID:       {"meta skuid", 4, hostEndian, unknown},
	unix.NFT_META_SKGID:       {"meta skgid", 4, hostEndian, unknown},
	unix.NFT_META_NFTRACE:     {"meta nftrace", 1, hex, varying},
	unix.NFT_META_RTCLASSID:   {"rtclassid", 4, hostEndian, unknown},
	unix.NFT_META_SECMARK:     {"meta secmark", 4, hostEndian, unknown},
	unix.NFT_META_NFPROTO:     {layer3Name, 1, hex, layer3Protocol},
	unix.NFT_META_L4PROTO:     {"meta l4proto", 1, protocol, func(m *machine, to []octet) { to[0] = m.protocol()[0] }},
	unix.NFT_META_BRI_IIFNAME: {"ibrname", unix.IFNAMSIZ, deviceName, unknown},
	unix.NFT_META_BRI_OIFNAME: {"obrname", unix.IFNAMSIZ, deviceName, unknown},
	unix.NFT_META_PKTTYPE:     {"meta pkttype", 1, hex, inLayer3(unix.PACKET_HOST)},
	unix.NFT_META_CPU:         {"meta cpu", 4, hostEndian, varying},
	unix.NFT_META_IIFGROUP:    {"iifgroup", 4, hostEndian, unknown},
	unix.NFT_META_OIFGROUP:    {"oifgroup", 4, hostEndian, unknown},
	unix.NFT_META_CGROUP:      {"meta cgroup", 4, hostEndian, unknown},
	unix.NFT_META_PRANDOM:     {"meta random", 4, hex, varying},
	25:                        {"ipsec", 1, hex, unknown},
	26:                        {"iifkind", unix.IFNAMSIZ, deviceName, unknown},
	27:                        {"oifkind", unix.IFNAMSIZ, deviceName, unknown},
	28:                        {"ibrpvid", 2, hex, unknown},
	29:                        {"ibrvproto", 2, hex, unknown},
	30:                        {"meta time", 8, hex, varying},
	31:                        {"meta day", 1, hex, varying},
	32:                        {"meta hour", 4, hex, varying},
	33:                        {"sdif", 4, hostEndian, unknown},
	34:                        {"sdifname", unix.IFNAMSIZ, deviceName, unknown},
}

// protocolOfLink loads the EtherType, which a bridge knows as well as IP.
func protocolOfLink(m *machine, to []octet) {
	clear(to)
	if m.layer3 || m.bridged {
		setKnown(to, []byte{0x08, 0x00})
		if m.family == ipv6 {
			setKnown(to, []byte{0x86, 0xdd})
		}
	}
}

// nfproto is netfilter's number of the family.
func (f family) nfproto() byte {
	if f == ipv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func layer3Protocol(m *machine, to []octet) { inLayer3(m.family.nfproto())(m, to) }

// inLayer3 loads what all IP packets have at the hooks of IP.
func inLayer3(value ...byte) func(*machine, []octet) {
	return func(m *machine, to []octet) {
		clear(to)
		if m.layer3 {
			setKnown(to, value)
		}
	}
}

func (m *machine) loadIndex(d *Device, to []octet) {
	m.askDevice(d)
	clear(to)
	if d != nil && d.Index != 0 {
		var index [4]byte
		binary.NativeEndian.PutUint32(index[:], uint32(d.Index))
		setKnown(to, index[:])
	}
}

func (m *machine) loadName(d *Device, to []octet) {
	m.askDevice(d)
	clear(to)
	if d != nil {
		name := d.name()
		setKnown(to, name[:])
	}
}

func (k *compiler) meta(e nftExpr) {
	key := e.number(unix.NFTA_META_KEY)
	known, ok := metaKeys[key]
	switch {
	case e.has(unix.NFTA_META_SREG):
		k.setMeta(e, key)
	case ok:
		if key == unix.NFT_META_RTCLASSID || key == unix.NFT_META_SECMARK || key == unix.NFT_META_PKTTYPE {
			k.lacking(known.name)
		}
		k.load(e, unix.NFTA_META_DREG, known.length, source{known.name, known.format}, known.load)
	default:
		k.strange(e)
	}
}

// setMeta compiles the setting of metadata. Mark and priority are seen at the
// end of the regular path.
func (k *compiler) setMeta(e nftExpr, key uint32) {
	const length = 4
	switch key {
	case unix.NFT_META_MARK:
		k.setMark(e, unix.NFTA_META_SREG, setsPacketMark, metaKeys[key].name)
	case unix.NFT_META_PRIORITY, unix.NFT_META_SECMARK:
		k.use(e, unix.NFTA_META_SREG, length, metaKeys[key].name+" set")
	default:
		k.step(needing(metaKeys[key].name+" set", ""))
	}
}

// ctKey is what is known of a connection.
type ctKey struct {
	name   string
	length int // bytes
	format func([]byte) string
	load   func(m *machine, to []octet, end ctEnd)
}

// ctEnd says which address of a connection a key means.
type ctEnd struct {
	key     uint32
	whole   bool // with a direction
	ofReply bool // which is this one
}

// ctKeys are the known ones (enum nft_ct_keys).
var ctKeys = map[uint32]ctKey{
	unix.NFT_CT_STATE: {"ct state", 4, ctState, func(m *machine, to []octet, _ ctEnd) {
		if state := m.state(); state != 0 {
			var b [4]byte
			binary.NativeEndian.PutUint32(b[:], uint32(state))
			setKnown(to, b[:])
		}
	}},
	unix.NFT_CT_DIRECTION: {"ct direction", 1, hex, func(m *machine, to []octet, _ ctEnd) {
		direction := byte(0)
		if m.reply {
			direction = 1
		}
		setKnown(to, []byte{direction})
	}},
	unix.NFT_CT_STATUS: {"ct status", 4, hostEndian, func(m *machine, to []octet, _ ctEnd) {
		value, mask, varies := m.status()
		var v, b, d [4]byte
		binary.NativeEndian.PutUint32(v[:], value)
		binary.NativeEndian.PutUint32(b[:], mask)
		binary.NativeEndian.PutUint32(d[:], varies)
		for i := range v {
			to[i] = octet{value: v[i], known: b[i], varies: d[i]}
		}
	}},
	unix.NFT_CT_MARK:       {connMarkName, 4, hostEndian, (*machine).loadConnMark},
	unix.NFT_CT_SECMARK:    {"ct secmark", 4, hostEndian, nil},
	unix.NFT_CT_EXPIRATION: {"ct expiration", 4, hostEndian, ctVaries},
	unix.NFT_CT_HELPER:     {"ct helper", 16, deviceName, nil},
	unix.NFT_CT_L3PROTOCOL: {"ct l3proto", 1, hex, func(m *machine, to []octet, _ ctEnd) { setKnown(to, []byte{m.family.nfproto()}) }},
	unix.NFT_CT_SRC:        {"ct saddr", 4, address, findTuple},
	unix.NFT_CT_DST:        {"ct daddr", 4, address, findTuple},
	unix.NFT_CT_PROTOCOL:   {"ct protocol", 1, protocol, func(m *machine, to []octet, _ ctEnd) { to[0] = m.protocol()[0] }},
	unix.NFT_CT_PROTO_SRC:  {"ct proto-src", 2, bigEndian, findTuple},
	unix.NFT_CT_PROTO_DST:  {"ct proto-dst", 2, bigEndian, findTuple},
	unix.NFT_CT_LABELS:     {"ct label", 16, hex, nil},
	unix.NFT_CT_PKTS:       {"ct packets", 8, hex, ctVaries},
	unix.NFT_CT_BYTES:      {"ct bytes", 8, hex, ctVaries},
	unix.NFT_CT_AVGPKT:     {"ct avgpkt", 8, hex, ctVaries},
	unix.NFT_CT_ZONE:       {"ct zone", 2, hex, nil},
	unix.NFT_CT_EVENTMASK:  {"ct event", 4, hostEndian, nil},
	unix.NFT_CT_SRC_IP:     {"ct ip saddr", 4, address, findTuple},
	unix.NFT_CT_DST_IP:     {"ct ip daddr", 4, address, findTuple},
	unix.NFT_CT_SRC_IP6:    {"ct ip6 saddr", 16, address, findTuple},
	unix.NFT_CT_DST_IP6:    {"ct ip6 daddr", 16, address, findTuple},
	unix.NFT_CT_ID:         {"ct id", 4, hex, nil},
}

// silentCT are those that packets and `conntrack -U` change.
var silentCT = []uint32{unix.NFT_CT_MARK, unix.NFT_CT_SECMARK, unix.NFT_CT_LABELS, unix.NFT_CT_EVENTMASK}

func ctVaries(_ *machine, to []octet, _ ctEnd) { vary(to) }

func (k *compiler) ct(e nftExpr) {
	key := e.number(unix.NFTA_CT_KEY)
	known, ok := ctKeys[key]
	if !ok {
		k.strange(e)
		return
	}
	k.lacking(known.name)
	if e.has(unix.NFTA_CT_SREG) {
		switch key {
		case unix.NFT_CT_ZONE:
			k.step(zoning(""))
		case unix.NFT_CT_LABELS: // which the next packet may meet
			k.step(needing("ct label set", ""))
			return
		case unix.NFT_CT_MARK:
			k.setMark(e, unix.NFTA_CT_SREG, setsConnMark, known.name)
			return
		}
		k.use(e, unix.NFTA_CT_SREG, known.length, known.name+" set")
		return
	}
	if (key == unix.NFT_CT_SRC || key == unix.NFT_CT_DST) && k.key.family != unix.NFPROTO_IPV4 {
		known.length = 16
	}
	if slices.Contains(silentCT, key) {
		s := silently(step{why: known.name, check: func(*machine) truth { return yes }})
		s.byMark = key == unix.NFT_CT_MARK
		k.step(s)
	}
	end := ctEnd{key, e.has(unix.NFTA_CT_DIRECTION), bytes.Equal(e.get(unix.NFTA_CT_DIRECTION), []byte{1})}
	k.load(e, unix.NFTA_CT_DREG, known.length, source{known.name, known.format}, func(m *machine, to []octet) {
		clear(to)
		if known.load != nil && (m.connected() || key == unix.NFT_CT_STATE || key == unix.NFT_CT_MARK) {
			known.load(m, to, end)
		}
	})
}

// findTuple loads an address or a port of one of the connection's tuples.
func findTuple(m *machine, to []octet, end ctEnd) {
	if !end.whole {
		return
	}
	at := origSrc
	if end.ofReply {
		at = replySrc
	}
	if end.key == unix.NFT_CT_DST || end.key == unix.NFT_CT_DST_IP || end.key == unix.NFT_CT_DST_IP6 || end.key == unix.NFT_CT_PROTO_DST {
		at++ // its destination
	}
	if end.key == unix.NFT_CT_PROTO_SRC || end.key == unix.NFT_CT_PROTO_DST {
		m.conn.end(at).setPort(to)
	} else {
		m.conn.end(at).setAddr(to)
	}
}

// Formats of values.

func bigEndian(b []byte) string {
	var n uint64
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return fmt.Sprint(n)
}

func hostEndian(b []byte) string {
	if len(b) != 4 {
		return hex(b)
	}
	return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(b))
}

func address(b []byte) string {
	if a, ok := netip.AddrFromSlice(b); ok {
		return a.String()
	}
	return hex(b)
}

// prefix formats the leading bytes of an address.
func prefix(b []byte) string {
	var a [4]byte
	copy(a[:], b)
	return fmt.Sprintf("%v/%d", netip.AddrFrom4(a), 8*len(b))
}

func protocol(b []byte) string {
	switch {
	case bytes.Equal(b, []byte{unix.IPPROTO_TCP}):
		return "tcp"
	case bytes.Equal(b, []byte{unix.IPPROTO_UDP}):
		return "udp"
	default:
		return bigEndian(b)
	}
}

// deviceName formats a name, or the prefix of one, which is compared without
// the zero byte at its end.
func deviceName(b []byte) string {
	name := string(bytes.TrimRight(b, "\x00"))
	if len(name) == len(b) && len(b) < unix.IFNAMSIZ {
		name += "*"
	}
	return fmt.Sprintf("%q", name)
}

func ctState(b []byte) string {
	if len(b) != 4 {
		return hex(b)
	}
	for bit, name := range [...]string{"invalid", "established", "related", "new", 6: "untracked"} {
		if name != "" && binary.NativeEndian.Uint32(b) == 1<<bit {
			return name
		}
	}
	return hostEndian(b)
}
