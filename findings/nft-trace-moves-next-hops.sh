#!/bin/sh
# Linux: a rule that traces, in any network namespace, moves forwarded packets to other next hops.
#
# Seen on Linux 6.18.44: with net.ipv4.fib_multipath_hash_policy=1 the kernel chooses one of several
# next hops by addresses and ports, but by the packet's own hash where it has one
# (fib_multipath_hash() in net/ipv4/route.c). Once any rule of the machine sets "meta nftrace", each
# chain of nftables gives the packets that it sees such a hash (nft_trace_init() in
# net/netfilter/nf_tables_trace.c), which differs: half of the flows change their way, in all
# namespaces with a chain at prerouting. Policy 3 with the same fields hashes them always.
#
# What it taught: worlds of test/differential with several next hops have policy 3, since the cases
# of all run at once, and some trace.
#
# Run as root, while nothing else on the machine traces; it makes network namespaces of its own. Exit
# status 1: the kernel behaves otherwise.
set -eu

out=$(unshare --net --mount sh -eu <<'END'
mount -t sysfs sysfs /sys
ip link add in0 type veth peer name in1
ip link add out0 type veth peer name out1
for d in in0 in1 out0 out1; do ip link set $d up; done
ip addr add 192.0.2.1/24 dev in0
ip addr add 198.51.100.1/24 dev out0
ip neigh replace 198.51.100.2 lladdr 02:00:00:00:00:e0 dev out0 nud permanent
ip neigh replace 198.51.100.3 lladdr 02:00:00:00:00:e1 dev out0 nud permanent
sysctl -qw net.ipv4.ip_forward=1
ip route add default nexthop via 198.51.100.2 dev out0 nexthop via 198.51.100.3 dev out0
nft 'table ip t { chain c { type filter hook prerouting priority 0; }; }'
ways() {
	python3 - <<'P'
import socket, struct
def open_at(dev):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    s.bind((dev, 0x0800))
    return s
def checksum(b):
    n = sum(struct.unpack("!%dH" % (len(b) // 2), b))
    n = (n & 0xffff) + (n >> 16)
    return ~(n + (n >> 16)) & 0xffff
to = bytes.fromhex(open("/sys/class/net/in0/address").read().strip().replace(":", ""))
sender, receiver = open_at("in1"), open_at("out1")
ways = ""
for port in range(5000, 5032):
    udp = struct.pack("!HHHH", port, 9, 12, 0) + b"abcd"
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes([192, 0, 2, 5]), bytes([203, 0, 113, 1]))
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    sender.send(to + bytes([2, 0, 0, 0, 0, 5, 8, 0]) + ip + udp)
    ways += str(receiver.recv(2000)[5] & 1)
print(ways)
P
}
compare() {
	before=$(ways)
	[ "$before" = "$(ways)" ] || echo "$1: by chance"
	unshare --net sh -c "nft 'table ip t { chain c { meta nftrace set 1; }; }'; exec sleep 60" &
	other=$!
	sleep 1
	[ "$before" = "$(ways)" ] && echo "$1: the same ways" || echo "$1: other ways"
	kill $other
	sleep 1
	[ "$before" = "$(ways)" ] || echo "$1: other ways afterwards"
}
sysctl -qw net.ipv4.fib_multipath_hash_policy=1
compare 'policy 1'
sysctl -qw net.ipv4.fib_multipath_hash_policy=3 net.ipv4.fib_multipath_hash_fields=0x37
compare 'policy 3'
END
)
echo "Linux $(uname -r):"
echo "$out"
[ "$out" = 'policy 1: other ways
policy 3: the same ways' ]
