/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Routes with several next hops. The kernel chooses one by a hash, which may be the hash
 * that the container's socket gave the packet, or the IPv6 flow label made of it
 * (net/ipv4/route.c, fib_multipath_hash; net/ipv6/route.c, rt6_multipath_hash). TCP takes
 * another one when its segments are not acknowledged (include/net/sock.h,
 * sk_rethink_txhash), and so leaves a next hop that loses them. A decision by such a
 * route is used for packets with the hash and the label of the one that the kernel
 * decided about.
 */
#pragma once

#include "packet.h"

/* What the sender of a packet chose that may select a next hop. */
always_inline __u32 sender_hash(const struct __sk_buff *skb, const struct packet *pkt)
{
	return is_ipv6(pkt) ? skb->hash ^ (load32(pkt->ip6) & bpf_htonl(FLOW_LABEL)) :
			      skb->hash;
}

/* Whether the decision stored in a half holds for the packet's hash. */
always_inline int same_sender(const struct __sk_buff *skb, const struct packet *pkt,
			      const struct half *half)
{
	return !(half->flags & DEV_SPREAD) || half->way.sender == sender_hash(skb, pkt);
}
