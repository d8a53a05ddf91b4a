# First process of a machine under test: mounts what the machine keeps for
# itself, draws its network, says "ready", and stays until standard input ends.
set -e

# No mount may travel back to the host.
mount --make-rprivate /
mount -t proc proc /proc

# /run is fresh: it holds Docker's sockets, xtables.lock and ip(8)'s names. Were
# the host's visible, dockerd would use a containerd that listens in
# /run/containerd, and leave its own files there.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/cgroup /run/netns /run/docker-data

# dockerd writes a key to /etc/docker, whatever --data-root says.
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

# An own bpffs: what is pinned in it is this machine's.
mount -t bpf bpf /sys/fs/bpf

# The names must not hang on a file in /proc, which ends with this process.
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

# The shell's wait also reaps orphans, which a first process must: a daemon that
# was killed would stay a zombie, and look alive. A background job reads from
# /dev/null unless told otherwise, hence descriptor 3.
exec 3<&0
cat <&3 >/dev/null &
wait $!
