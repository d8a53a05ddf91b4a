#!/bin/sh
# Linux: a macvlan device in mode passthru takes its lower device's packets while it is down.
#
# Seen on Linux 6.18.44: a macvlan device of mode bridge, private or vepa leaves the lower device
# what is addressed to it. One of mode passthru has the same MAC address. Up, it receives the
# packets, and the machine answers by it. Before it is up, as "ip link add" leaves it, it drops
# them: the lower device sends, and receives nothing
# (macvlan_handle_frame() in drivers/net/macvlan.c).
#
# What it taught: a device can matter before it is up. SCON counts one of mode passthru or source
# from when it appears, and no packet passes its lower device by what was learnt before
# (internal/host/changes, TestKernel).
#
# Run as root; it makes two network namespaces of its own. Exit status 1: the kernel behaves otherwise.
set -eu

out=$(unshare --net sh -eu <<'END'
unshare --net sleep 60 &
other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep .1; done
ip link add up0 type veth peer name far0 netns $other
nsenter --target $other --net sh -eu -c 'ip addr add 192.0.2.2/24 dev far0 && ip link set far0 up'
ip addr add 192.0.2.1/24 dev up0
ip link set up0 up
answers() {
	ping -c 1 -W "$1" 192.0.2.2 >/dev/null && echo "$2: an answer" || echo "$2: none"
}
answers 5 'no macvlan'
for mode in bridge private vepa passthru; do
	ip link add link up0 name m0 type macvlan mode $mode
	answers 2 "$mode, down"
	ip link set m0 up
	answers 2 "$mode, up"
	ip link del m0
done
answers 5 'no macvlan again'
END
)
echo "Linux $(uname -r):"
echo "$out"
[ "$out" = 'no macvlan: an answer
bridge, down: an answer
bridge, up: an answer
private, down: an answer
private, up: an answer
vepa, down: an answer
vepa, up: an answer
passthru, down: none
passthru, up: an answer
no macvlan again: an answer' ]
