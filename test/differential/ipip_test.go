package differential

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// overIPIP are the settings with an IPIP device as the uplink, whose packets skip it
// (bpf/lib/tunnel.h).
var overIPIP = []settings{
	{lease: time.Second, leasePackets: 65536, makeup: makeup{bare: true, ipip: true}},
	{lease: 50 * time.Millisecond, leasePackets: 16, pageSlots: 4, makeup: makeup{bare: true, ipip: true, spread: true}},
	{lease: time.Second, leasePackets: 65536, pageSlots: 4, makeup: makeup{bare: true, ipip: true, byRoute: true}},
	{lease: 50 * time.Millisecond, leasePackets: 16, makeup: makeup{bare: true, ipip: true, byRoute: true, routed: true}},
}

// The ends of the tunnel; the third one is another machine's, 10.77.0.9 by route.
const (
	tunnelDevice = "192.168.77.1"
	tunnelEdge   = "192.168.77.2"
	tunnelOther  = "192.168.77.9"
)

// underIPIP replaces device's eth0 by an IPIP device: %s is the remote end. It has the
// length of queue of a tun device.
const underIPIP = `
ip link set eth0 down
ip link set eth0 name under0
ip addr flush dev under0
ip link set under0 mtu 1520 address 02:00:00:00:00:d0
sysctl -q -w net.ipv4.conf.under0.rp_filter=0 net.ipv4.conf.under0.send_redirects=0
ip addr add ` + tunnelDevice + `/24 dev under0
ip link set under0 up
ip neigh replace ` + tunnelEdge + ` lladdr 02:00:00:00:00:e0 dev under0 nud permanent
ip neigh replace ` + tunnelOther + ` lladdr 02:00:00:00:00:e1 dev under0 nud permanent
ip link add eth0 mtu 1500 txqueuelen 500 type ipip local ` + tunnelDevice + ` %s
`

// throughTunnel has routes name the ends of tunnels as their gateways.
var throughTunnel = strings.NewReplacer(
	"via 10.77.0.2 dev eth0", "via "+tunnelEdge+" dev eth0 onlink",
	"via 10.77.0.9 dev eth0", "via "+tunnelOther+" dev eth0 onlink",
	"ip addr add 10.77.0.1/24 dev eth0", "ip addr add 10.77.0.1/32 dev eth0",
	"ip addr add 10.77.0.11/24 dev eth0", "ip addr add 10.77.0.11/32 dev eth0",
)

// needIPIP skips a test on a kernel without IPIP.
func needIPIP(t *testing.T) {
	t.Helper()
	err := netns.Scratch(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "tunnel"
		return netlink.LinkAdd(&netlink.Iptun{LinkAttrs: attrs, Local: []byte{127, 0, 0, 1}})
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no IPIP (CONFIG_NET_IPIP)")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// openIPIP replaces device's uplink by an IPIP device and opens the tunnel's other end,
// which is no kernel's.
func openIPIP(b *scontest.Bed, byRoute bool) (*wire, error) {
	remote := "remote " + tunnelEdge
	if byRoute {
		remote = ""
	}
	b.Sh(lab.Device, fmt.Sprintf(underIPIP, remote))
	b.Sh(lab.Edge, "ip link set eth0 mtu 1520")
	w, err := openWire(b, lab.Edge)
	if err != nil {
		return nil, err
	}
	b.T.Cleanup(w.close)
	w.ipip = true
	return w, nil
}

// entersTunnel reports whether a frame of edge is for device's IPv4.
func entersTunnel(frame []byte) bool {
	return len(frame) > ethLen+1 && string(frame[:6]) == string(uplinkMAC) && string(frame[12:14]) == "\x08\x00"
}

// protoIPIP is the number of IPv4 in IPv4.
const protoIPIP = 4

// encapsulate puts a frame of edge into an outer IP header, as Linux does: ECN is the inner one's.
func encapsulate(o offload, frame []byte) (offload, []byte) {
	const df, ttl = 0x40, 64
	outer := make([]byte, ipLen)
	outer[0], outer[1] = 0x45, frame[ethLen+1]&3
	binary.BigEndian.PutUint16(outer[2:], uint16(ipLen+len(frame)-ethLen))
	outer[6], outer[8], outer[9] = df, ttl, protoIPIP
	copy(outer[12:], []byte{192, 168, 77, 2, 192, 168, 77, 1})
	frame = slices.Concat(frame[:ethLen], outer, frame[ethLen:])
	fixIP(frame)
	if o.partial {
		o.csumStart += ipLen
	}
	if o.header != 0 {
		o.header += ipLen
	}
	return o, frame
}

// decapsulate takes a packet out of its outer IP header. What stays are the fields that
// have to be alike: not the id, which only tells fragments apart.
func (c *captured) decapsulate() {
	b := []byte(c.data)
	if len(b) < ethLen+2*ipLen || string(b[12:14]) != "\x08\x00" || b[ethLen] != 0x45 || b[ethLen+9] != protoIPIP {
		return
	}
	outer := b[ethLen : ethLen+ipLen]
	outer[4], outer[5] = 0, 0
	valid := sum([]byte(c.data)[ethLen:ethLen+ipLen]) == 0xffff
	outer[10], outer[11] = 0, 0
	c.outer = fmt.Sprintf("%x %x valid %v", b[:12], outer, valid)
	head := []byte(c.offloads)
	for _, at := range []int{2, 6} { // length of headers, start of the checksum
		if n := binary.NativeEndian.Uint16(head[at:]); n != 0 {
			binary.NativeEndian.PutUint16(head[at:], n-ipLen)
		}
	}
	c.offloads = string(head)
	c.data = string(edgeMAC) + string(uplinkMAC) + "\x08\x00" + string(b[ethLen+ipLen:])
}
