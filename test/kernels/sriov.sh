# The paper's Fig. 2: three containers in line over cards with virtual functions
# (VFs), two ports at NUMA node 1 and two at node 3. Everything between two
# containers crosses the cable between port 1 and port 2, in a VLAN of its own.
# Each container can be entered at port 0 and left at port 3.
#
#	                  node 1                     node 3
#	 in ════ port 0 ─┬── VF 0 → lxc0    lxc0 → VF 0 ──┬─ port 3 ════ out
#	         cable   ├── VF 1 → lxc1    lxc1 → VF 1 ──┤  cable
#	                 └── VF 2 → lxc2    lxc2 → VF 2 ──┘
#
#	 lxc0 → port 1, VF 0 ══ VLAN 101 ══ port 2, VF 0 → lxc1
#	 lxc1 → port 1, VF 1 ══ VLAN 102 ══ port 2, VF 1 → lxc2
#
# Prints a line for each step, and documents of scon pin.
set -e
PATH=/opt:$PATH

# device names the device with a MAC address.
device() { basename "$(dirname "$(grep -lx "$1" /sys/class/net/*/address)")"; }

# functions gives a port VFs and their addresses: PORT NUMBER
functions() {
	ip link set "port$1" up
	echo "$2" >"/sys/class/net/port$1/device/sriov_numvfs"
	ethtool -L "port$1" combined 1
	vf=0
	while [ $vf -lt "$2" ]; do
		ip link set "port$1" vf $vf mac "02:00:00:00:1$1:0$vf"
		vf=$((vf + 1))
	done
}

# give moves a VF into a container: PORT VF CONTAINER NAME ADDRESS
give() {
	vf=$(basename /sys/class/net/"port$1"/device/virtfn"$2"/net/*)
	ip link set "$vf" netns "$3" name "$4"
	ip -n "$3" address add "$5" dev "$4"
	ip -n "$3" link set "$4" up
}

# leads sends a flow, which its UDP port tells, on its way: CONTAINER PORT GATEWAY
leads() {
	ip -n "$1" rule add ipproto udp dport "$2" table "$2"
	ip -n "$1" route add default via "$3" table "$2"
}

build() {
	modprobe -a igb virtio_net
	for port in 0 1 2 3; do
		ip link set "$(device 02:00:00:00:00:0$port)" name port$port
	done
	functions 0 3
	functions 1 2
	functions 2 2
	functions 3 3
	for port in 1 2; do
		ip link set port$port vf 0 vlan 101
		ip link set port$port vf 1 vlan 102
	done
	modprobe igbvf

	for ns in in lxc0 lxc1 lxc2 out; do
		ip netns add $ns
		ip -n $ns link set lo up
		ip netns exec $ns sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
	done
	ip link set "$(device 02:00:00:00:00:10)" netns in name wire
	ip link set "$(device 02:00:00:00:00:11)" netns out name wire
	ip -n in address add 10.0.0.1/24 dev wire
	ip -n out address add 10.0.3.1/24 dev wire
	ip -n out address add 10.9.0.1/32 dev lo
	ip -n in link set wire up
	ip -n out link set wire up
	for i in 0 1 2; do
		give 0 $i lxc$i in 10.0.0.1$i/24
		give 3 $i lxc$i eg 10.0.3.1$i/24
	done
	give 1 0 lxc0 right 10.1.1.1/24
	give 2 0 lxc1 left 10.1.1.2/24
	give 1 1 lxc1 right 10.1.2.1/24
	give 2 1 lxc2 left 10.1.2.2/24

	# 7000 goes through all three; 7001 enters and leaves at lxc1; 7002 enters at
	# lxc0 and leaves at lxc1.
	leads in 7000 10.0.0.10
	leads in 7001 10.0.0.11
	leads in 7002 10.0.0.10
	leads lxc0 7000 10.1.1.2
	leads lxc0 7002 10.1.1.2
	leads lxc1 7000 10.1.2.2
	leads lxc1 7001 10.0.3.1
	leads lxc1 7002 10.0.3.1
	leads lxc2 7000 10.0.3.1
	ip netns exec out nft -f - <<-END
		table ip seen {
			chain input {
				type filter hook input priority 0
				udp dport 7000 counter
				udp dport 7001 counter
				udp dport 7002 counter
			}
		}
	END
}

# arrived is how many packets of a flow got out at the end.
arrived() {
	ip netns exec out nft list table ip seen | sed -n "s/.*dport $1 counter packets \([0-9]*\) .*/\1/p"
}

# flow sends 200 frames of 64 bytes and says how many arrived.
flow() {
	before=$(arrived "$1")
	for burst in 1 2 3 4; do
		ip netns exec in socat -u -b 22 OPEN:/dev/zero,readbytes=1100 "UDP4-SENDTO:10.9.0.1:$1"
	done
	tries=0
	while [ $(($(arrived "$1") - before)) -lt "$2" ] && [ $tries -lt 100 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
	echo "flow $1: $(($(arrived "$1") - before)) of 200"
}

# stir has an interrupt of every queue come: an interrupt moves when it next does.
stir() {
	for i in 0 1 2; do
		for neighbour in 10.0.0.1 10.0.3.1; do
			ip netns exec lxc$i ping -q -c 5 -i 0.05 $neighbour >/dev/null
		done
	done
	ip netns exec lxc0 ping -q -c 5 -i 0.05 10.1.1.2 >/dev/null
	ip netns exec lxc1 ping -q -c 5 -i 0.05 10.1.2.2 >/dev/null
}

affinities() { (cd /proc/irq && grep . */smp_affinity_list); }

build
# The first packets ask for MAC addresses, and may be lost.
for port in 7000 7001 7002; do
	flow $port 1 >/dev/null
done
for port in 7000 7001 7002; do
	flow $port 200
done
ip link set port2 vf 0 vlan 103
sleep 1
echo "in another VLAN, $(flow 7000 1)"
ip link set port2 vf 0 vlan 101
sleep 1

affinities >/tmp/before
for policy in core numa; do
	scon pin apply --policy $policy >/dev/null
	stir
	for port in 7000 7001 7002; do
		flow $port 200
	done
	echo "=== $policy"
	scon pin status --json
	echo "==="
done
scon pin restore
affinities | cmp - /tmp/before && echo "as before"
