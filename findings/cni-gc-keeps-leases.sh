#!/bin/sh
# CNI plugins: GC succeeds and frees nothing, although the plugins say that they know it.
#
# Seen with v1.7.1 of the plugins host-local and ptp: VERSION answers "1.1.0", the first version with
# GC, and GC with a list of the attachments that are valid ends with status 0. The leases of all
# others stay, also those whose container is gone, and so do their devices; a subnet that such
# leases have filled up stays full. host-local releases by DEL alone; libcni sends DEL to what is in
# its own cache before it sends GC, and what that has lost nobody releases. STATUS succeeds as well
# while no address is left.
#
# What it taught: a plugin's success in GC, or in STATUS, says nothing about leases. SCON sends DEL
# to its IPAM plugin for each attachment that is not listed, before GC (internal/startup, TestDelegatedGC).
#
# Run as root, with Go; it makes network namespaces of its own. Exit status 1: the plugins behave
# otherwise.
set -eu

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
(
	export GOBIN="$dir/bin" GOPATH="$dir/go" GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
	go install github.com/containernetworking/plugins/plugins/ipam/host-local@v1.7.1 \
		github.com/containernetworking/plugins/plugins/main/ptp@v1.7.1 2>log || { cat log >&2; exit 2; }
)
out=$(dir=$dir unshare --net sh -eu <<'END'
containers=
trap 'kill $containers' EXIT
conf() { # ATTRIBUTES
	echo "{\"cniVersion\": \"1.1.0\", \"name\": \"blue\", \"type\": \"ptp\", $1
		\"ipam\": {\"type\": \"host-local\", \"dataDir\": \"$dir/leases\", \"subnet\": \"10.5.0.0/29\", \"rangeEnd\": \"10.5.0.3\"}}"
}
call() { # VERB PLUGIN ATTRIBUTES
	conf "$3" | CNI_COMMAND=$1 CNI_PATH=$dir/bin "$dir/bin/$2"
}
leases() { (cd "$dir/leases/blue" && echo 10.*); }
for c in one two; do
	unshare --net sleep 60 >/dev/null &
	containers="$containers $!"
	until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
	CNI_CONTAINERID=$c CNI_NETNS=/proc/$!/ns/net CNI_IFNAME=eth0 call ADD ptp '' >/dev/null
done
echo "ptp supports $(call VERSION ptp '' | grep -o '"1[.]1[.]0"]')"
echo "leases: $(leases)"
for plugin in ptp host-local; do
	call GC $plugin '"cni.dev/valid-attachments": [{"containerID": "one", "ifname": "eth0"}],'
	echo "GC of all but one by $plugin succeeds; leases: $(leases); devices: $(ip -oneline link show type veth 2>/dev/null | wc -l)"
	call STATUS $plugin ''
	echo "STATUS of $plugin succeeds"
done
CNI_CONTAINERID=three CNI_NETNS=/proc/$!/ns/net CNI_IFNAME=eth1 call ADD ptp '' | grep -o 'no IP addresses available'
END
)
echo "$out"
[ "$out" = 'ptp supports "1.1.0"]
leases: 10.5.0.2 10.5.0.3
GC of all but one by ptp succeeds; leases: 10.5.0.2 10.5.0.3; devices: 2
STATUS of ptp succeeds
GC of all but one by host-local succeeds; leases: 10.5.0.2 10.5.0.3; devices: 2
STATUS of host-local succeeds
no IP addresses available' ]
