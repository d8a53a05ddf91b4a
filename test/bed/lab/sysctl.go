package lab

import "github.com/scon-project/scon/internal/host/sysctl"

// nodeSysctls apply to every node of a lab without IPv6, like Docker's default
// network: its links have no neighbour discovery.
var nodeSysctls = []sysctl.Setting{
	{Name: "net/ipv6/conf/all/disable_ipv6", Value: "1"},
	{Name: "net/ipv6/conf/default/disable_ipv6", Value: "1"},
}

// nodeSysctls6 apply to every node of a lab with IPv6: no duplicate address
// detection, no router solicitation.
var nodeSysctls6 = []sysctl.Setting{
	{Name: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
	{Name: "net/ipv6/conf/default/disable_ipv6", Value: "0"},
	{Name: "net/ipv6/conf/all/accept_dad", Value: "0"},
	{Name: "net/ipv6/conf/default/accept_dad", Value: "0"},
	{Name: "net/ipv6/conf/default/accept_ra", Value: "0"},
	{Name: "net/ipv6/conf/default/router_solicitations", Value: "0"},
}

// deviceSysctls6 are the deviceSysctls of IPv6.
var deviceSysctls6 = []sysctl.Setting{
	{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
	{Name: "net/bridge/bridge-nf-call-ip6tables", Value: "1"},
}

// deviceSysctls are the settings that Docker and systemd make. They are set before
// the links are made, which inherit conf/default.
var deviceSysctls = []sysctl.Setting{
	{Name: "net/ipv4/ip_forward", Value: "1"},
	{Name: "net/ipv4/conf/default/rp_filter", Value: "2"},
	{Name: "net/bridge/bridge-nf-call-iptables", Value: "1"},
}
