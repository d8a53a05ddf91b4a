# scon.service as systemd runs it, in the machine's own network namespace, with
# a container behind a bridge and a connection out of it. Prints what became of
# it: a line for each step.
#
#	 edge                 this machine                     container
#	+-----------+    +-------------------------+    +-----------------+
#	| 10.77.0.2 |====| 10.77.0.1    172.17.0.1 |====| 172.17.0.2      |
#	+-----------+    +-------------------------+    +-----------------+
set -e
trap 'journalctl --unit scon --output cat --no-pager >&2' EXIT

id=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef

build() {
	# A process in a container, as runtimes leave it: no name of its namespace,
	# a sysfs of its own, and a control group that says whose it is.
	unshare --net --mount sh -c 'mount -t sysfs sysfs /sys; exec sleep 10000' &
	container=$!
	mkdir -p /sys/fs/cgroup/docker/$id
	sleep 1
	echo $container >/sys/fs/cgroup/docker/$id/cgroup.procs

	ip netns add edge
	ip link add eth0 type veth peer name eth0 netns edge
	ip address add 10.77.0.1/24 dev eth0
	ip -n edge address add 10.77.0.2/24 dev eth0
	ip link add docker0 type bridge
	ip address add 172.17.0.1/16 dev docker0
	ip link add veth1 type veth peer name eth0 netns $container
	ip link set veth1 master docker0
	inside="nsenter --net=/proc/$container/ns/net"
	$inside ip address add 172.17.0.2/16 dev eth0
	$inside ip link set eth0 up
	for device in docker0 veth1 eth0; do ip link set $device up; done
	ip -n edge link set eth0 up
	$inside ip route add default via 172.17.0.1
	sysctl -q net.ipv4.ip_forward=1
	nft -f - <<-END
		table ip nat {
			chain out {
				type nat hook postrouting priority srcnat
				oifname eth0 masquerade
			}
		}
	END
	# The daemon has to read these, too.
	iptables-legacy -A FORWARD -p tcp --dport 9 -m limit --limit 1/s -j ACCEPT

	groupadd scon
	sed -i 's/^socket_group: .*/socket_group: scon/; s/^metrics: .*/metrics: 127.0.0.1:9477/' /etc/scon/scon.yaml

	ip netns exec edge socat TCP4-LISTEN:7000,fork EXEC:cat &
	sleep 1
	(while echo question; do sleep 0.02; done) | $inside socat - TCP4:10.77.0.2:7000 >/dev/null &
}

groupadd() { echo "$1:x:900:" >>/etc/group; }

# outcome waits until the service does all that it is there for, or until it is
# plain that it will not.
outcome() {
	tries=0
	while [ $tries -lt 60 ]; do
		tries=$((tries + 1))
		sleep 0.25
		if systemctl --quiet is-failed scon; then
			echo failed
			return
		fi
		scon flows --json 2>/dev/null | grep -q '"state": "express"' || continue
		# A container has some seconds to show who it is.
		if scon status --json | grep -q "\"id\": \"$id\""; then
			echo works
			return
		fi
		unnamed=$((unnamed + 1))
		if [ $unnamed = 40 ]; then
			echo works, but does not know the container
			return
		fi
	done
	echo does not work
}

express_packets() {
	scon status --json | sed -n 's/^    "express_packets": \([0-9]*\).*/\1/p'
}

with() { # SETTING...
	mkdir -p /run/systemd/system/scon.service.d
	{
		echo '[Service]'
		for setting; do echo "$setting"; done
	} >/run/systemd/system/scon.service.d/test.conf
	systemctl daemon-reload
}

build
systemd-analyze verify scon.service && echo verified
systemctl start scon
echo "started: $(outcome)"
stat -c '%n %A %G' /run/scon/scon.sock
wget -q -O - http://127.0.0.1:9477/metrics | grep '^scon_' >/dev/null && echo 'gives metrics'
systemd-analyze security --offline=yes /usr/local/lib/systemd/system/scon.service | tail -1 | LC_ALL=C sed 's/[^ -~]//g'

systemctl kill --signal KILL scon
sleep 1
echo "killed: $(outcome), restarts $(systemctl show --property NRestarts --value scon)"
before=$(express_packets)
sleep 1
test "$(express_packets)" -gt "$before" && echo 'packets go express again'

systemctl stop scon
systemctl show --property ActiveState,Result scon
tc qdisc show | grep clsact || true
find /sys/fs/bpf/scon /run/scon 2>/dev/null || true

for capability in $(systemctl show --property CapabilityBoundingSet --value scon); do
	with Restart=no "CapabilityBoundingSet=~$capability"
	systemctl start scon
	unnamed=0
	echo "without $capability: $(outcome)"
	systemctl stop scon
	systemctl reset-failed scon 2>/dev/null || true
done
