#!/bin/sh
# iptables-translate: a translated rule can match what the rule did not, and the other way round.
#
# Seen with iptables 1.8.9 (Debian 12), its rule loaded by iptables-nft, its translation by nft: of
# "-m multiport ! --ports 80,8000:8100" the "!" is lost, and of the range all but both ends, so that
# packets to port 80 are dropped in place of those to all others. Of "--ctstate NEW,SNAT", which
# new connections and translated ones match, only "ct status snat" is left. Each time the exit
# status is 0, and no comment says that something is missing, as one does for what the program
# cannot translate.
#
# What it taught: how a rule of iptables reads in nftables' language does not say what it matches.
# SCON compiles what the kernel stores of both kinds (internal/express/rules, TestXTConditions), and
# no ruleset of its tests is a translation.
#
# Run as root on Debian 12, with nft; it makes a network namespace of its own. Exit status 1: the
# program behaves otherwise.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get --quiet --quiet download iptables=1.8.9-2 libxtables12=1.8.9-2 2>log || { cat log >&2; exit 2; }
for package in *.deb; do
	dpkg-deb --extract "$package" .
done
LD_LIBRARY_PATH=$(echo "$dir"/usr/lib/*-linux-gnu)
export LD_LIBRARY_PATH XTABLES_LIBDIR="$LD_LIBRARY_PATH/xtables"

out=$(unshare --net sh -eu <<'END'
ip link set lo up
udp() { # what becomes of datagrams to some ports
	python3 -c '
import socket
for port in (80, 8050, 9000):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", port))
        print(port, "passes", end="; ")
    except PermissionError:
        print(port, "is dropped", end="; ")'
}
tool=usr/sbin/xtables-nft-multi
rule='-A OUTPUT -p udp -m multiport ! --ports 80,8000:8100 -j DROP'
$tool iptables $rule
echo "iptables-nft: $(udp)"
nft flush ruleset
nft 'add table ip filter; add chain ip filter OUTPUT { type filter hook output priority 0; }'
$tool iptables-translate $rule | sed "s/^nft '\(.*\)'$/\1/" | nft -f -
echo "translated:   $(udp)"
$tool iptables-translate -A FORWARD -m conntrack --ctstate NEW,SNAT -j DROP
END
)
echo "$out"
[ "$out" = "iptables-nft: 80 passes; 8050 passes; 9000 is dropped; 
translated:   80 is dropped; 8050 passes; 9000 passes; 
nft 'add rule ip filter FORWARD ct status snat counter drop'" ]
