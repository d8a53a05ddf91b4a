#!/bin/sh
# Linux: a new connection can have the ID of the one whose place it took, translated otherwise.
#
# Seen on Linux 6.18.44 (amd64): a UDP connection leaves by a rule that gives it port 4000. The rule
# is changed to give port 6000, the connection is deleted (IPCTNL_MSG_CT_DELETE, as "conntrack -D"
# and "-F" do), and its program goes on. Conntrack then has another entry with another port, which
# no other announcement tells from the old one than the end that was announced between the two; and
# it has the same CTA_ID. nf_ct_get_id() in net/netfilter/nf_conntrack_core.c makes the ID of the
# entry's address in memory and its original tuple. The allocator hands the address out again, and
# the tuple is the same.
#
# What it taught: ID and original tuple do not name a connection to one who may have missed its end.
# SCON compares the reply's tuple as well (internal/express/composer, TestConfirmTranslation).
#
# Run as root, with nft; it makes a network namespace of its own. Exit status 1: the kernel behaves
# otherwise.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install --quiet --target "$dir" --no-deps pyroute2==0.9.7

PYTHONPATH=$dir unshare --net taskset --cpu-list 0 python3 - <<'END'
import platform
import socket
import subprocess
import sys

from pyroute2 import IPRoute
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTSocket

TRIES = 100


def port(number):
    subprocess.run(
        ["nft", "-f", "-"], check=True, text=True,
        input=f"""table ip f
flush table ip f
table ip f {{
	chain out {{
		type nat hook postrouting priority 100
		ip protocol udp snat to 10.77.0.1:{number}
	}}
}}
""",
    )


def entries(ct):
    for e in ct.dump():
        a = dict(e["attrs"])
        orig, reply = (dict(dict(a[name]["attrs"])["CTA_TUPLE_PROTO"]["attrs"]) for name in ("CTA_TUPLE_ORIG", "CTA_TUPLE_REPLY"))
        yield a["CTA_ID"], orig["CTA_PROTO_SRC_PORT"], reply["CTA_PROTO_DST_PORT"]


with IPRoute() as ip:
    ip.link("add", ifname="up0", kind="veth", peer="far0")
    for name in ("lo", "up0", "far0"):
        ip.link("set", index=ip.link_lookup(ifname=name)[0], state="up")
    up0 = ip.link_lookup(ifname="up0")[0]
    ip.addr("add", index=up0, address="10.77.0.1", prefixlen=24)
    ip.neigh("add", dst="10.77.0.2", lladdr="02:00:00:00:00:02", ifindex=up0, state=0x80)

program = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
program.bind(("10.77.0.1", 5000))
same = 0
with NFCTSocket() as ct:
    for _ in range(TRIES):
        ids = []
        for number in (4000, 6000):
            port(number)
            program.sendto(b"", ("10.77.0.2", 7000))
            found = [e for e in entries(ct) if e[1] == 5000]
            if len(found) != 1 or found[0][2] != number:
                sys.exit(f"conntrack has {found}, want one entry that is translated to port {number}")
            ids.append(found[0][0])
            ct.flush()
        same += ids[0] == ids[1]
print(f"Linux {platform.release()}: of {TRIES} connections that took another's place with another port, {same} had its ID")
sys.exit(0 if same else 1)
END
