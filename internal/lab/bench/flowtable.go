package bench

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/scon-project/scon/internal/lab"
)

// flowtableTable is the flowtable's table, beside Docker's rules, and
// flowtableTable6 that for IPv6.
const (
	flowtableTable  = "ip sconbench"
	flowtableTable6 = "ip6 sconbench"
)

// flowtableRules offload every connection that Docker's rules let pass. Only
// with its port among the devices do a container's packets leave the bridge out
// in both directions; with the uplink alone conntrack says OFFLOAD, too, and the
// bridge sees them all the same (reading.check does not accept that).
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

// loadFlowtable puts the kernel's fast path into the current namespace, at
// devices by which packets to an address and back arrive.
func loadFlowtable(to netip.Addr, devices []string) error {
	return nft(fmt.Sprintf(flowtableRules, tableFor(to), strings.Join(devices, ", ")))
}

// wireOf is the device that the packets of a second uplink cross, a flowtable's
// too: that sees through VLAN devices and bridges, and sends by those beneath.
func wireOf(kind string) string {
	switch kind {
	case lab.UplinkVLAN:
		return lab.Uplink
	case lab.UplinkBridge:
		return lab.FirstPort
	default:
		return lab.Second
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

// nft runs a script in the current namespace.
func nft(script string) error {
	cmd := exec.Command("nft", "--file", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
