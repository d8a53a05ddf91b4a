#!/bin/sh
# Linux: a new lifetime of an IPv6 address ends the route to its network at once.
#
# Seen on Linux 6.18.44 (amd64, HZ = 250): an address of a network that lives for ever gets a
# valid lifetime of 60 s (RTM_NEWADDR with NLM_F_REPLACE, as "ip address change" sends it). The
# address stays, for 60 s. The kernel's route to its network should stay for 60 s as well; it has
# a time of expiry that lies in the past, and hosts of the network are unreachable at once. No
# message announces it: inet6_addr_modify() in net/ipv6/addrconf.c hands modify_prefix_route()
# the lifetime, where that takes a time of expiry.
#
# What it taught: a lifetime can change without a message, and end at once. SCON lists routes
# with lifetimes each second where there are any (internal/host/changes, TestLifetimeChangesSilently).
#
# Run as root; it makes a network namespace of its own. Exit status 1: the kernel behaves otherwise.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install --quiet --target "$dir" --no-deps pyroute2==0.9.7

PYTHONPATH=$dir unshare --net python3 - <<'END'
import errno
import platform
import sys

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

with IPRoute() as ip:
    ip.link("add", ifname="up0", kind="veth", peer="far0")
    for name in ("up0", "far0"):
        ip.link("set", index=ip.link_lookup(ifname=name)[0], state="up")
    up0 = ip.link_lookup(ifname="up0")[0]
    nodad = 0x02
    address = {"index": up0, "address": "2001:db8:5::1", "prefixlen": 64, "IFA_FLAGS": nodad}
    ip.addr("add", **address)

    def reachable():
        try:
            ip.route("get", dst="2001:db8:5::7")
        except NetlinkError as e:
            if e.code != errno.ENETUNREACH:
                raise
            return False
        return True

    before = reachable()
    ip.addr("replace", **address, IFA_CACHEINFO={"ifa_valid": 60, "ifa_preferred": 30, "cstamp": 0, "tstamp": 0})
    after = reachable()
    kept = [a.get_attr("IFA_CACHEINFO")["ifa_valid"] for a in ip.get_addr(index=up0) if a.get_attr("IFA_ADDRESS") == "2001:db8:5::1"]
    print(f"Linux {platform.release()}: a host of the network is reachable: {before} before, {after} after the change; "
          f"the address is valid for {kept[0]} s more")
    sys.exit(0 if before and not after and 55 <= kept[0] <= 60 else 1)
END
