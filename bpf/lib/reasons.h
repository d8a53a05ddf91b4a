/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Why a packet went the regular way. One is added to reasons[reason] of the
 * device it was seen at. internal/express/datapath gives the same names to people.
 */
#pragma once

enum reason {
	EXPRESS = 0, /* not a reason: every check passed */
	NOT_IP, /* neither IPv4 nor IPv6 */
	NOT_TCP_UDP,
	VLAN_TAG,
	HAS_OPTIONS, /* of IPv4, or extension headers of IPv6 */
	FRAGMENT,
	TTL_EXPIRES, /* TTL or hop limit <= 1: the regular way answers with ICMP */
	MALFORMED, /* lengths, checksums or TCP flags that conntrack refuses */
	TCP_SYN_FIN_RST,
	NO_ENTRY, /* connection not known, or not yet */
	COMPOSING, /* known, waiting to see the regular way's decision */
	CLOSED, /* ended; the daemon is about to remove it */
	NEW_GENERATION, /* rules, routes, links or neighbours have changed */
	LEASE_ENDED, /* this packet renews the lease */
	IDENTITY, /* other device, MAC addresses, mark or DSCP than decided on */
	TOO_LONG, /* longer than any packet that the regular way let pass */
	INERT, /* no heartbeat from the daemon */
	PAUSED,
	IPSEC, /* was decrypted: one in the clear must not follow its decision */
	UNTIED, /* at the end of the regular way: not the packet that entered */
	REASONS,
};
