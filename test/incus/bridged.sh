#!/bin/sh
# Has Incus and LXC start a container each on a bridge with the card as a port, as their bridged profiles do, and compares
# both without and with SCON: TCP from the container to a machine beyond the card, and UDP round trips, by turns.
# A line "ROUND CONTAINER MODE GBITS USECONDS EXPRESS" for each; EXPRESS counts the packets that went express.
#
# Runs in the system of incus_test.go, in a network namespace of its own.
#
# Usage: bridged.sh ROUNDS SECONDS NETFILTER; NETFILTER is 1 for br_netfilter.
set -eu
rounds=$1 seconds=$2 netfilter=$3
edge=192.0.2.1

# The card, the bridge, the machine beyond.
ip link set lo up
ip netns add edge
ip link add card type veth peer name wire netns edge
ip -n edge link set lo up
ip -n edge address add $edge/24 dev wire
ip -n edge link set wire up
ip link add br0 type bridge
ip link set card master br0 up
ip link set br0 up
ip address add 192.0.2.2/24 dev br0
ip route add default via $edge
sysctl -qw net.bridge.bridge-nf-call-iptables="$netfilter" ||
	[ "$netfilter" = 0 ] # no such setting: nothing looks into bridges
[ "$netfilter" = 0 ] || nft -f - <<'RULES'
table inet site {
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
		iifname br0 oifname br0 accept
	}
}
RULES

# An image: busybox.
image=/tmp/image
mkdir -p $image/rootfs/bin $image/rootfs/sbin $image/rootfs/etc $image/rootfs/proc $image/rootfs/sys $image/rootfs/dev $image/rootfs/run
cp /bin/busybox $image/rootfs/bin/
ln -s ../bin/busybox $image/rootfs/sbin/init
for name in sh sleep; do ln -s busybox $image/rootfs/bin/$name; done
echo '::respawn:/bin/sleep 100000' >$image/rootfs/etc/inittab
printf 'architecture: %s\ncreation_date: 1700000000\n' "$(uname -m)" >$image/metadata.yaml
tar --create --directory $image --file /tmp/image.tar metadata.yaml rootfs

# Incus.
echo root:1000000:1000000000 | tee /etc/subuid >/etc/subgid
/usr/libexec/incus/incusd --group root >/tmp/incusd.log 2>&1 &
incus admin waitready --timeout 60 2>/dev/null
incus admin init --preseed <<'PRESEED' 2>/dev/null
storage_pools: [{name: default, driver: dir}]
profiles: [{name: default, devices: {root: {type: disk, pool: default, path: /}, eth0: {type: nic, nictype: bridged, parent: br0}}}]
PRESEED
incus image import /tmp/image.tar --alias busybox --quiet >/dev/null
incus launch busybox by-incus --quiet
incus_pid=$(incus info by-incus | sed -n 's/^PID: //p')

# LXC.
cat >/tmp/by-lxc.conf <<CONFIG
lxc.uts.name = by-lxc
lxc.rootfs.path = dir:$image/rootfs
lxc.init.cmd = /bin/sleep 100000
lxc.apparmor.profile = unconfined
lxc.net.0.type = veth
lxc.net.0.link = br0
lxc.net.0.flags = up
CONFIG
mkdir /tmp/lxc
lxc-start --name=by-lxc --lxcpath=/tmp/lxc --rcfile=/tmp/by-lxc.conf
lxc_pid=$(lxc-info --name=by-lxc --lxcpath=/tmp/lxc --pid --no-humanize)

inside() { # CONTAINER COMMAND...
	case $1 in by-incus) pid=$incus_pid ;; by-lxc) pid=$lxc_pid ;; esac
	shift
	nsenter --target "$pid" --net "$@"
}

inside by-incus ip address add 192.0.2.11/24 dev eth0
inside by-lxc ip address add 192.0.2.12/24 dev eth0
ip netns exec edge iperf3 --server --daemon --logfile /tmp/iperf3.log
# Client and server of round trips share a CPU: otherwise most of the time is the interrupt that wakes the other one.
ip netns exec edge taskset --cpu-list 0 sockperf server --ip $edge --port 11111 >/tmp/sockperf.log 2>&1 &
sleep 1

express() { # CONTAINER: its packets that went express
	scon status --json | jq --arg name "$1" '[.containers[] | select(.name == $name) | .express_packets] | add // 0'
}

for round in $(seq "$rounds"); do
	for mode in container express; do
		if [ $mode = express ]; then
			scon up --uplink card >/dev/null # a veth device looks like a container's port
		fi
		for container in by-incus by-lxc; do
			gbits=$(inside $container iperf3 --client $edge --time "$seconds" --json | jq '.end.sum_received.bits_per_second / 1e9')
			us=$(inside $container taskset --cpu-list 0 sockperf ping-pong --ip $edge --port 11111 --time "$seconds" --full-rtt 2>/dev/null |
				sed -n 's/.*avg-rtt=\([0-9.]*\).*/\1/p')
			count=0
			[ $mode = container ] || count=$(express $container)
			echo "$round $container $mode $gbits $us $count"
		done
		if [ $mode = express ]; then
			[ "$round" != "$rounds" ] || scon explain by-incus >&2
			scon down >/dev/null
		fi
	done
done
