#!/bin/sh
# Linux: settings of a device that come by a link message are announced by no netconf message.
#
# Seen on Linux 6.18.44: rp_filter of a device that is written below /proc/sys is announced to
# RTNLGRP_IPV4_NETCONF (RTM_NEWNETCONF, "ip monitor netconf"). The same setting in RTM_SETLINK
# (IFLA_AF_SPEC, AF_INET, IFLA_INET_CONF) takes effect, and
# that group hears nothing: inet_set_link_af() in net/ipv4/devinet.c sets the value alone. Only
# the RTM_NEWLINK that follows has it, among all settings of the device.
#
# What it taught: who follows netconf messages does not know a device's settings. SCON compares
# those in messages about links, too (internal/host/changes, TestSettingByNetlink).
#
# Run as root; it makes a network namespace of its own. Exit status 1: the kernel behaves otherwise.
set -eu

unshare --net python3 - <<'END'
import platform
import socket
import struct
import subprocess
import sys

RTM_SETLINK, RTM_NEWNETCONF, NLM_F_REQUEST, NLM_F_ACK = 19, 80, 1, 4
IFLA_AF_SPEC, AF_INET, IFLA_INET_CONF, IPV4_DEVCONF_RP_FILTER = 26, 2, 1, 8
RTNLGRP_IPV4_NETCONF, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP = 24, 270, 1
PATH = "/proc/sys/net/ipv4/conf/up0/rp_filter"


def attribute(kind, value):
    data = struct.pack("HH", 4 + len(value), kind) + value
    return data + bytes(-len(data) % 4)


subprocess.run(["ip", "link", "add", "up0", "type", "veth", "peer", "name", "far0"], check=True)
index = socket.if_nametoindex("up0")
hears = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
hears.bind((0, 0))
hears.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_IPV4_NETCONF)
hears.setblocking(False)


def announced():
    n = 0
    while True:
        try:
            data = hears.recv(65536)
        except BlockingIOError:
            return n
        n += struct.unpack_from("IH", data)[1] == RTM_NEWNETCONF


def by_file(value="1"):
    with open(PATH, "w") as f:
        f.write(value)


def by_message():
    conf = attribute(IPV4_DEVCONF_RP_FILTER, struct.pack("I", 2))
    body = struct.pack("BxHiII", 0, 0, index, 0, 0)
    body += attribute(IFLA_AF_SPEC, attribute(AF_INET, attribute(IFLA_INET_CONF, conf)))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.send(struct.pack("IHHII", 16 + len(body), RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
        error = struct.unpack_from("i", s.recv(65536), 16)[0]
        if error:
            raise OSError(-error, "RTM_SETLINK")


by_file("0")
announced()
seen = []
for change in by_file, by_message:
    change()
    with open(PATH) as f:
        seen.append((int(f.read()), announced()))
print(f"Linux {platform.release()}: rp_filter is {seen[0][0]} after a write, announced {seen[0][1]} time(s); "
      f"{seen[1][0]} after a link message, announced {seen[1][1]} time(s)")
sys.exit(0 if seen == [(1, 1), (2, 0)] else 1)
END
