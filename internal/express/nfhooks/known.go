package nfhooks

import (
	"slices"
	"strings"
)

// What is known of a hook's function: it judges no packet of an established
// connection, or it evaluates rules, which package rules reads.
var (
	knownFunctions = []string{
		// Conntrack, NAT and defragmentation: composing asks conntrack.
		"ipv4_conntrack_in", "ipv6_conntrack_in", "nf_confirm", "ipv4_confirm", "ipv6_confirm", "nf_nat_bridge_pre_routing",
		"nf_ct_bridge_pre", "nf_ct_bridge_post", "nf_ct_bridge_in", "nf_ct_bridge_in_local",
		"ipv4_conntrack_defrag", "ipv6_defrag",
		"nf_nat_ipv4_pre_routing", "nf_nat_ipv4_in", "nf_nat_ipv4_out", "nf_nat_ipv4_fn",
		"nf_nat_ipv6_pre_routing", "nf_nat_ipv6_in", "nf_nat_ipv6_out", "nf_nat_ipv6_fn",
		// SYNPROXY adjusts sequence numbers, which keeps a connection regular.
		"ipv4_synproxy_hook", "ipv6_synproxy_hook",
		// A bridge hands its packets to the hooks of IP, which are listed themselves.
		"br_nf_pre_routing", "br_nf_forward", "br_nf_forward_ip", "br_nf_forward_arp", "br_nf_post_routing", "br_nf_local_in", "ip_sabotage_in",
		// They label packets, and judge them by labels of SECMARK rules, which are read.
		"selinux_ip_forward", "selinux_ipv4_forward", "selinux_ipv6_forward",
		"selinux_ip_postroute", "selinux_ipv4_postroute", "selinux_ipv6_postroute", "apparmor_ip_postroute",
		// iptables-legacy.
		"ipt_do_table", "ip6t_do_table", "iptable_filter_hook", "iptable_raw_hook", "iptable_mangle_hook", "iptable_security_hook",
		"iptable_nat_do_chain", "ip6table_filter_hook", "ip6table_raw_hook", "ip6table_mangle_hook", "ip6table_security_hook", "ip6table_nat_do_chain",
	}
	// SCON's own measuring programs accept every packet.
	ownPrograms = []string{"scon_way_begins", "scon_at_hook", "scon_way_ends"}
)

func (h Hook) isKnown() bool {
	if h.Program != 0 {
		return slices.Contains(ownPrograms, h.Name)
	}
	return strings.HasPrefix(h.Function, "nft_") || slices.Contains(knownFunctions, h.Function)
}
