# The topology of "Applicability of Hardware-Supported Containers in Low-Latency
# Networking", Fig. 2, by sriov.yaml: three containers in line over cards with virtual
# functions (VFs), two ports at NUMA node 1 and two at node 3, and those of the
# generator and the receiver at nodes 0 and 2. Packets from one container to the next
# cross the cable between port 1 and port 2. Flows enter each container at port 0 and
# leave it at port 3, in its own VLAN.
#
#	 node 0               node 1                     node 3                node 2
#	 in ══ port 4 ════ port 0 ─┬── VF 0 → lxc0    lxc0 → VF 0 ──┬─ port 3 ════ port 5 ══ out
#	                   cable   ├── VF 1 → lxc1    lxc1 → VF 1 ──┤  cable
#	                           └── VF 2 → lxc2    lxc2 → VF 2 ──┘
#
#	 lxc0 → port 1, VF 0 ════════════════ port 2, VF 0 → lxc1
#	 lxc1 → port 1, VF 1 ═ VLAN 102, 30 ms ═ port 2, VF 1 → lxc2
#
# Prints a line for each step, and documents of scon pin and scon latency.
set -e
PATH=/opt:$PATH

# device prints the name of the device with a MAC address.
device() { basename "$(dirname "$(grep -lx "$1" /sys/class/net/*/address)")"; }

# functions creates a port's VFs with their addresses: PORT NUMBER
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

# node runs a command in a node.
node() { n=$1; shift; ip netns exec "scon-fig2-$n" "$@"; }

links() { ip -o link show | sed 's/^[0-9]*: \([^:@]*\).* mtu \([0-9]*\) .*/\1 \2/' | sort; }

# quietly prints the output of a command only if it fails.
quietly() { "$@" >/tmp/said 2>&1 || { cat /tmp/said; return 1; }; }

# up builds the topology and counts the packets that leave it.
up() {
	quietly scon lab up --topology /opt/sriov.yaml
	node out nft -f - <<-END
		table ip seen {
			chain input {
				type filter hook input priority 0
				udp dport 7000 counter
				udp dport 7001 counter
				udp dport 7002 counter
				udp dport 7003 counter
			}
		}
	END
	# The first packets trigger ARP, and may be lost.
	for port in 7000 7001 7002; do
		flow $port 1 >/dev/null
	done
	tries=0
	while [ "$(arrived 7003)" = 0 ] && [ $tries -lt 20 ]; do
		tries=$((tries + 1))
		flow 7003 1 >/dev/null
	done
}

# arrived prints the number of a flow's packets that left the topology.
arrived() { node out nft list table ip seen | sed -n "s/.*dport $1 counter packets \([0-9]*\) .*/\1/p"; }

# flow sends 200 frames of 64 bytes and prints how many arrived. It waits for as many as
# the second argument states, at most 10 s.
flow() {
	before=$(arrived "$1")
	for burst in 1 2 3 4; do
		node in socat -u -b 22 OPEN:/dev/zero,readbytes=1100 "UDP4-SENDTO:10.98.0.5:$1"
	done
	tries=0
	while [ $(($(arrived "$1") - before)) -lt "$2" ] && [ $tries -lt 100 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
	echo "flow $1: $(($(arrived "$1") - before)) of 200"
}

# stir triggers an interrupt of every queue: an interrupt moves at its next occurrence.
# The addresses of links follow their order in the file.
stir() {
	for to in 1 3 5; do
		node in ping -q -c 5 -i 0.05 10.99.0.$to >/dev/null
	done
	for to in 10 12 14; do
		node out ping -q -c 5 -i 0.05 10.99.0.$to >/dev/null
	done
	node lxc0 ping -q -c 5 -i 0.05 10.99.0.7 >/dev/null
	node lxc1 ping -q -c 5 -i 0.05 10.99.0.9 >/dev/null
}

# shortest prints the minimum round-trip time over a link: NODE ADDRESS
shortest() { node "$1" ping -q -c 5 -i 0.1 "$2" | sed -n 's,^rtt[^=]*= \([0-9.]*\)/.*,\1,p'; }

affinities() { (cd /proc/irq && grep . */smp_affinity_list); }

modprobe igb
for port in 0 1 2 3 4 5; do
	ip link set "$(device 02:00:00:00:00:0$port)" name port$port
done
functions 0 3
functions 1 2
functions 2 2
functions 3 3
functions 4 3
functions 5 3
modprobe igbvf
links >/tmp/links

up
for port in 7000 7001 7002; do
	flow $port 200
done
echo "loses: $(flow 7003 100)"
echo "milliseconds: $(shortest lxc0 10.99.0.7) without delay, $(shortest lxc1 10.99.0.9) with"
# Another VLAN is isolated.
ip -n scon-fig2-lxc2 link delete left
ip -n scon-fig2-lxc2 link add link vf-left name left type vlan id 103
ip -n scon-fig2-lxc2 address add 10.99.0.9/31 dev left
ip -n scon-fig2-lxc2 link set left up
echo "in another VLAN, $(flow 7000 1)"
scon lab down
links | cmp - /tmp/links && echo "links as before"

up
affinities >/tmp/before
for policy in core numa; do
	quietly scon pin apply --policy $policy
	stir
	for port in 7000 7001 7002; do
		flow $port 200
	done
	echo "=== $policy"
	scon pin status --json
	echo "==="
done
scon pin restore
affinities | cmp - /tmp/before && echo "affinities as before"

# Devices that were removed with their VFs are skipped, the others restored.
quietly scon pin apply --policy core
scon lab down
links | cmp - /tmp/links && echo "links as before, again"
echo 0 >/sys/class/net/port1/device/sriov_numvfs
scon pin restore | tail -n 1
modprobe -r igbvf # otherwise the VFs are unusable until they are reset
functions 1 2
modprobe igbvf
links >/tmp/links

# Latency of the same line.
quietly scon latency --topology /opt/sriov.yaml --rate 500 --duration 400ms --repeats 1 --json /tmp/latency.json
echo "=== latency"
cat /tmp/latency.json
echo "==="
links | cmp - /tmp/links && echo "links as before, at last"
