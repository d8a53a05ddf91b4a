#!/bin/sh
# netavark: without aardvark-dns it sets a network with DNS up, and fails to take it down.
#
# Seen with 2.1.0 (crate), and with Debian 13's 1.14.0 by "podman rm": aardvark-dns is a program of
# its own, which distributions only recommend beside Podman. Where it is not installed, "setup" of a
# network with "dns_enabled" ends with success, and its answer names a DNS server that nobody runs;
# "teardown" of the same network removes the devices, and ends with status 1 and "remove aardvark
# entries". Podman then reports that a container could not be removed which is gone.
#
# What it taught: networks of Podman's in tests have no DNS where aardvark-dns may be missing
# (test/docker, TestPodman).
#
# Needs root, cargo (Rust 1.88) and protoc. Exit status 1: netavark behaves otherwise.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CARGO_HOME=$dir/cargo cargo install --quiet --locked --debug --root "$dir" --target-dir "$dir/target" netavark@2.1.0
cat >"$dir/config" <<'END'
{"container_id": "c", "container_name": "c", "networks": {"blue": {"static_ips": ["10.89.0.2"], "interface_name": "eth0"}},
"network_info": {"blue": {"name": "blue", "id": "1111111111111111111111111111111111111111111111111111111111111111",
"driver": "bridge", "network_interface": "podman1", "subnets": [{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}],
"ipv6_enabled": false, "internal": false, "dns_enabled": true, "ipam_options": {"driver": "host-local"}}}}
END
out=$(dir=$dir unshare --net --mount sh -eu <<'END'
mount -t tmpfs tmpfs /run
ip link set lo up
unshare --net sleep 60 &
container=$!
trap 'kill "$container"' EXIT
until [ "$(readlink "/proc/$container/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
for step in setup teardown; do
	status=0
	answer=$(NETAVARK_FW=none "$dir/bin/netavark" --config "$dir/run" --aardvark-binary "$dir/none" "$step" "/proc/$container/ns/net" <"$dir/config" 2>/dev/null) || status=$?
	echo "$step: exit status $status, $(echo "$answer" | grep -o '"dns_server_ips":[^]]*]\|"error":"[^:]*')"
done
[ -e /sys/class/net/podman1 ] || ip -brief link show podman1 2>/dev/null || echo "the bridge is gone"
END
)
echo "$out"
[ "$out" = 'setup: exit status 0, "dns_server_ips":["10.89.0.1"]
teardown: exit status 1, "error":"remove aardvark entries
the bridge is gone' ]
