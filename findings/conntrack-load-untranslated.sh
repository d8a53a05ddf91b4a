#!/bin/sh
# conntrack: an entry that was saved and loaded looks the same, and its packets are not translated.
#
# Seen with conntrack-tools 1.4.7 (Debian 12) on Linux 6.18.44: a UDP connection leaves by a rule that
# gives it port 4000. "conntrack -L -o save" writes both of the entry's tuples, "conntrack
# --load-file" makes an entry of them that "conntrack -L" prints as before, and the connection's
# next packets leave from port 5000: its program's, which the entry's reply tuple does not have. The kernel
# translates by the bits IPS_SRC_NAT and IPS_DST_NAT of an entry's status, which it sets for CTA_NAT_SRC
# and CTA_NAT_DST alone; the format has words for both, and "-o save" does not write them.
#
# What it taught: two tuples do not make a translation. SCON sends both attributes when it replaces
# an entry, and leaves one alone whose bits say something else than its tuples
# (internal/express/conntrack/renew.go, TestRenew).
#
# Run as root on Debian 12, with nft; it makes a network namespace of its own. Exit status 1: the
# program or the kernel behaves otherwise.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get --quiet --quiet download conntrack=1:1.4.7-1+b2 2>log || { cat log >&2; exit 2; }
dpkg-deb --extract conntrack_*.deb .

unshare --net python3 - <<'END'
import re
import socket
import struct
import subprocess
import sys


def run(command, said=None):
    return subprocess.run(command.split(), check=True, text=True, input=said, capture_output=True).stdout


for command in (
    "link add up0 type veth peer name far0", "link set up0 up", "link set far0 up",
    "address add 10.77.0.1/24 dev up0", "neighbour add 10.77.0.2 lladdr 02:00:00:00:00:02 dev up0",
):
    run("ip " + command)
run("nft -f -", """table ip t {
	chain out { type nat hook postrouting priority 100; udp dport 7000 snat to 10.77.0.1:4000; }
}
""")
far = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
far.bind(("far0", 0))
far.settimeout(10)
program = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
program.bind(("10.77.0.1", 5000))


def leaves():
    program.sendto(b"", ("10.77.0.2", 7000))
    return struct.unpack("!H", far.recv(2048)[34:36])[0]


def entry():
    return re.sub(r"udp +17 +\d+ ", "", run("usr/sbin/conntrack -L -p udp").strip())


before, was = leaves(), entry()
saved = run("usr/sbin/conntrack -L -p udp -o save")
run("usr/sbin/conntrack -F")
run("usr/sbin/conntrack --load-file -", saved)
loaded = entry()
after = leaves()
print(f"saved: {saved.strip()}")
print(f"the entry is the same: {was == loaded}; the connection leaves from port {before} before, {after} afterwards")
sys.exit(0 if was == loaded and before == 4000 and after == 5000 else 1)
END
