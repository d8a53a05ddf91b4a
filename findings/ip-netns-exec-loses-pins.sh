#!/bin/sh
# iproute2 and bpftool: what is pinned under "ip netns exec" is gone afterwards, although that succeeded.
#
# Seen with iproute2 6.1.0 and bpftool 7.1.0 (Debian 12), Linux 6.18.44: "ip netns exec NAME" runs a command
# with a /sys of its own, that of the namespace, on which the host's BPF file system is not mounted.
# bpftool, which misses one there, mounts another, pins the map at the path that it was asked for,
# and ends with status 0. With the command's mounts its pin ends, and with that the map. The host's pins
# are hidden as well: a program that looks for a map there makes a second one. By "nsenter --net"
# both programs meet the host's file system.
#
# What it taught: a program that pins changes the network namespace by setns(2) alone. "scon up --netns"
# does so, and keeps the mounts that it was started with (docs/engines.md, TestSwarm).
#
# Run as root, with iproute2, bpftool and util-linux; it makes mounts and a network namespace of
# its own. Exit status 1: the programs behave otherwise.
set -eu

out=$(unshare --mount sh -eu <<'END'
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
mount -t tmpfs tmpfs /sys/fs # the host's BPF file system, if it has one, is not touched
mkdir /sys/fs/bpf
mount -t bpf bpf /sys/fs/bpf
ip netns add blue
make() { # COMMAND... NAME
	name=$1
	shift
	status=0
	"$@" bpftool map create "/sys/fs/bpf/$name" type array key 4 value 4 entries 1 name "$name" || status=$?
	pin=$(ls "/sys/fs/bpf/$name" 2>/dev/null) || pin='no pin'
	echo "$1 $2: exit status $status, $pin, $(bpftool map show | grep -c "name $name ") map"
}
make by_ip ip netns exec blue
make by_nsenter nsenter --net=/run/netns/blue
END
)
echo "$out"
[ "$out" = 'ip netns: exit status 0, no pin, 0 map
nsenter --net=/run/netns/blue: exit status 0, /sys/fs/bpf/by_nsenter, 1 map' ]
