package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// sysctl is a setting of a namespace.
type sysctl struct {
	name, value string
}

// nodeSysctls hold in every node: the lab speaks IPv4 only, as Docker's default
// network does, and its links are free of neighbour discovery.
var nodeSysctls = []sysctl{
	{"net/ipv6/conf/all/disable_ipv6", "1"},
	{"net/ipv6/conf/default/disable_ipv6", "1"},
}

// deviceSysctls make device what Docker and systemd make of a machine.
// They go before the links, which take over conf/default.
var deviceSysctls = []sysctl{
	{"net/ipv4/ip_forward", "1"},
	{"net/ipv4/conf/default/rp_filter", "2"},
	{"net/bridge/bridge-nf-call-iptables", "1"},
}

// setSysctls sets what the kernel has: IPv6 and br_netfilter may be absent.
func setSysctls(settings []sysctl) error {
	for _, s := range settings {
		err := os.WriteFile("/proc/sys/"+s.name, []byte(s.value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sysctl %s=%s: %w", strings.ReplaceAll(s.name, "/", "."), s.value, err)
		}
	}
	return nil
}
