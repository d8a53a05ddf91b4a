package express_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// setLink changes a device by attributes that commands of this machine may not know.
func setLink(b *scontest.Bed, family uint8, typ int, dev string, attribute *nl.RtAttr) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		req := nl.NewNetlinkRequest(typ, unix.NLM_F_ACK)
		if typ == unix.RTM_NEWVLAN { // struct br_vlan_msg
			req.AddRawData(append([]byte{family, 0, 0, 0}, nl.Uint32Attr(uint32(l.Attrs().Index))...))
		} else {
			msg := nl.NewIfInfomsg(int(family))
			msg.Index = int32(l.Attrs().Index)
			req.AddData(msg)
		}
		req.AddRawData(attribute.Serialize())
		_, err = req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		b.T.Fatalf("set %s: %v", dev, err)
	}
}

// enableMST gives a bridge spanning trees for its VLANs.
func enableMST(b *scontest.Bed, bridge string) {
	const enable = 1 << 2 // BR_BOOLOPT_MST_ENABLE
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.ZeroTerminated("bridge"))
	info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(unix.IFLA_BR_MULTI_BOOLOPT, append(nl.Uint32Attr(enable), nl.Uint32Attr(enable)...))
	setLink(b, unix.AF_UNSPEC, unix.RTM_NEWLINK, bridge, info)
}

// spanningTree is the one that the VLAN of the test has.
const spanningTree = 1

// setMST makes a VLAN of a bridge part of it.
func setMST(b *scontest.Bed, bridge string, vlan uint16) {
	const global, id, msti = 2, 1, 18 // BRIDGE_VLANDB_GLOBAL_OPTIONS, _GOPTS_ID, _GOPTS_MSTI
	options := nl.NewRtAttr(global|unix.NLA_F_NESTED, nil)
	options.AddRtAttr(id, nl.Uint16Attr(vlan))
	options.AddRtAttr(msti, nl.Uint16Attr(spanningTree))
	setLink(b, unix.AF_BRIDGE, unix.RTM_NEWVLAN, bridge, options)
}

// setMSTState sets the state of a port in it.
func setMSTState(b *scontest.Bed, port string, state uint8) {
	const mst, entry, tree, is = 6, 1, 1, 2 // IFLA_BRIDGE_MST, _MST_ENTRY, _MST_ENTRY_MSTI, _MST_ENTRY_STATE
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, nil)
	e := spec.AddRtAttr(mst|unix.NLA_F_NESTED, nil).AddRtAttr(entry|unix.NLA_F_NESTED, nil)
	e.AddRtAttr(tree, nl.Uint16Attr(spanningTree))
	e.AddRtAttr(is, []byte{state})
	setLink(b, unix.AF_BRIDGE, unix.RTM_SETLINK, port, spec)
}

// A port that is blocked in a spanning tree of its VLAN, which the kernel does not announce,
// stops what goes express by it.
func TestMST(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	need(b, "ip link add probe type bridge vlan_filtering 1", "ip link del probe")
	b.Sh(lab.Device, "ip link set docker0 type bridge vlan_default_pvid 0 vlan_filtering 1")
	enableMST(b, lab.Bridge)
	const vlan = 5
	b.Sh(lab.Device, fmt.Sprintf("bridge vlan add dev docker0 vid %d pvid untagged self", vlan))
	setMST(b, lab.Bridge, vlan)
	b.Sh(lab.Device, fmt.Sprintf("bridge vlan add dev veth1 vid %d pvid untagged", vlan))
	const blocking, forwarding = 4, 3 // BR_STATE_*
	setMSTState(b, lab.Port(1), forwarding)
	b.Up()
	c := b.Outgoing("udp", 1).GoExpress()
	wantLease(t, c, composer.BoundByMST, time.Second)
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpressOriginal()
	setMSTState(b, lab.Port(1), blocking)
	stopsWithin(t, n, time.Now(), scontest.Heartbeat)
	setMSTState(b, lab.Port(1), forwarding)
	n.Proceed(t, 100)
	c.WaitExpressOriginal()
}
