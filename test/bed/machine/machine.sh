# Init of a machine under test: mounts the machine's own file systems, creates its
# network, prints "ready", and runs until standard input ends.
set -e

# No mount may propagate to the host.
mount --make-rprivate /
mount -t proc proc /proc

# An empty /run for Docker's sockets, xtables.lock and ip(8)'s names. With the
# host's /run, dockerd would use a containerd that listens in /run/containerd,
# and leave its own files there.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/cgroup /run/netns /run/docker-data

# dockerd writes a key to /etc/docker, regardless of --data-root.
mkdir -p /etc/docker
mount -t tmpfs tmpfs /etc/docker

# sysfs shows the devices of the network namespace that mounted it.
if mountpoint -q /sys/fs/cgroup; then
	mount --rbind /sys/fs/cgroup /run/cgroup
	mount -t sysfs sysfs /sys
	mount --move /run/cgroup /sys/fs/cgroup
else
	mount -t sysfs sysfs /sys
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi

# A bpffs for the machine's own pins.
mount -t bpf bpf /sys/fs/bpf

# The name must not be a bind mount of a file in /proc, which disappears with this process.
ip netns attach host $$
ip netns add edge
ip link set lo up
ip link add uplink type veth peer name wire netns edge
ip address add 192.0.2.2/24 dev uplink
ip link set uplink up
ip route add default via 192.0.2.1
ip -n edge link set lo up
ip -n edge address add 192.0.2.1/24 dev wire
ip -n edge link set wire up

echo ready

# wait also reaps orphans, as init must: otherwise a killed daemon would stay a
# zombie and seem to run. Background jobs read from /dev/null by default, hence
# descriptor 3.
exec 3<&0
cat <&3 >/dev/null &
wait $!
