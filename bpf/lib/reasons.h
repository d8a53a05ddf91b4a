/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Reasons for the verdict "regular". Each adds one to reasons[reason] of the
 * device where the packet was seen. internal/express/datapath/reasons.go has
 * the names that users see.
 */
#pragma once

enum reason {
	EXPRESS = 0, /* no reason: every check passed */
	NOT_IP, /* neither IPv4 nor IPv6 */
	NOT_TCP_UDP,
	VLAN_TAG,
	HAS_OPTIONS, /* IPv4 options, or IPv6 extension headers */
	FRAGMENT,
	TTL_EXPIRES, /* TTL or hop limit <= 1: the IP layer answers with ICMP */
	MALFORMED, /* lengths, checksums or TCP flags that conntrack refuses */
	TCP_SYN_FIN_RST,
	NO_ENTRY, /* no Conentry, or none yet */
	COMPOSING, /* Conentry without a decision, or where a bridge forwards by a device
		      that leads out, without one of the other direction */
	CLOSED, /* connection ended; the daemon is about to remove the Conentry */
	NEW_GENERATION, /* rules, routes, links or neighbours have changed */
	LEASE_ENDED, /* this packet renews the lease, or follows one that goes regular */
	IDENTITY, /* device, MAC addresses, mark, DSCP or hash (spread.h) differ from the
		     decision's */
	TOO_LONG, /* longer than any packet that the kernel let pass in this lease */
	INERT, /* no heartbeat from the daemon */
	PAUSED, /* all packets, or those of this container */
	IPSEC, /* decrypted: a cleartext packet must not use its decision */
	UNTIED, /* at an egress hook: not the packet that was seen at the ingress hook */
	PER_PACKET_RULE, /* no Conentry, because a rule that judges single packets may
			    touch the connection */
	REASONS,
};
