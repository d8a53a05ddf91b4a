package lab

import "github.com/scon-project/scon/internal/sysctl"

// nodeSysctls hold in every node: the lab speaks IPv4 only, as Docker's default
// network does, and its links are free of neighbour discovery.
var nodeSysctls = []sysctl.Setting{
	{Name: "net/ipv6/conf/all/disable_ipv6", Value: "1"},
	{Name: "net/ipv6/conf/default/disable_ipv6", Value: "1"},
}

// deviceSysctls make device what Docker and systemd make of a machine.
// They go before the links, which take over conf/default.
var deviceSysctls = []sysctl.Setting{
	{Name: "net/ipv4/ip_forward", Value: "1"},
	{Name: "net/ipv4/conf/default/rp_filter", Value: "2"},
	{Name: "net/bridge/bridge-nf-call-iptables", Value: "1"},
}
