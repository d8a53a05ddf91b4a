package bench

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
)

// flowtableTable is the nftables table of the flowtable, separate from Docker's
// rules. flowtableTable6 is the one for IPv6.
const (
	flowtableTable  = "ip sconbench"
	flowtableTable6 = "ip6 sconbench"
)

// flowtableRules offload every connection that Docker's rules accept. A container's
// packets bypass the bridge in both directions only if its port is among the
// devices. With the uplink alone, conntrack reports OFFLOAD although the bridge
// still handles every packet; reading.check rejects that.
const flowtableRules = `table %s {
	flowtable fast {
		hook ingress priority filter
		devices = { %s }
	}
	chain forward {
		type filter hook forward priority 10; policy accept;
		meta l4proto { tcp, udp } flow add @fast
	}
}
`

// loadFlowtable loads a flowtable into the current namespace, at the devices on
// which packets to an address and back arrive.
func loadFlowtable(to netip.Addr, devices []string) error {
	return nft(fmt.Sprintf(flowtableRules, tableFor(to), strings.Join(devices, ", ")))
}

// OpenFlowtable loads a flowtable for IPv4 into a namespace, until remove.
func OpenFlowtable(in string, devices ...string) (remove func() error, err error) {
	to := netip.IPv4Unspecified()
	if err := netns.Do(in, func() error { return loadFlowtable(to, devices) }); err != nil {
		return nil, err
	}
	return func() error { return netns.Do(in, func() error { return unloadFlowtable(to) }) }, nil
}

// wireOf returns the device that packets of a second uplink cross, also with a
// flowtable, and the device that this has. A flowtable resolves VLAN devices and bridges
// to the devices below them; express packets skip that of IPIP.
func wireOf(kind string) (wire, offload string) {
	switch kind {
	case lab.UplinkVLAN:
		return lab.Uplink, lab.Uplink
	case lab.UplinkBridge:
		return lab.FirstPort, lab.FirstPort
	case lab.UplinkIPIP:
		return lab.Uplink, lab.Second
	default:
		return lab.Second, lab.Second
	}
}

func unloadFlowtable(to netip.Addr) error {
	return nft("delete table " + tableFor(to) + "\n")
}

func tableFor(to netip.Addr) string {
	if to.Is6() {
		return flowtableTable6
	}
	return flowtableTable
}

// nft runs an nft script in the current namespace.
func nft(script string) error {
	cmd := exec.Command("nft", "--file", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
