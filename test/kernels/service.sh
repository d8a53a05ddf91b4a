# The three units under systemd, in the machine's own network namespace, with traffic of
# each: a connection from a container behind a bridge, containers of scon-cni, and two
# namespaces that exchange bytes through the pipe. Prints a line with the outcome of
# each step.
#
#	 edge                 this machine                     container
#	+-----------+    +-------------------------+    +-----------------+
#	| 10.77.0.2 |====| 10.77.0.1    172.17.0.1 |====| 172.17.0.2      |
#	+-----------+    +-------------------------+    +-----------------+
#	 left             right
#	+-----------+    +-----------+
#	| 10.1.0.1  |====| 10.1.0.2  |
#	+-----------+    +-----------+
set -e
trap 'journalctl --unit scon --unit scon-startup --unit scon-pipe --output cat --no-pager >&2' EXIT
units='scon scon-startup scon-pipe'

id=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef

build() {
	# A process in a container as runtimes create it: an unnamed network namespace,
	# a sysfs of its own, and a cgroup with the container's name.
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
	# The daemon must be able to read these as well.
	iptables-legacy -A FORWARD -p tcp --dport 9 -m limit --limit 1/s -j ACCEPT

	groupadd scon
	sed -i 's/^socket_group: .*/socket_group: scon/; s/^metrics: .*/metrics: 127.0.0.1:9477/
		s/^  enabled: false/  enabled: true/' /etc/scon/scon.yaml
	sed -i '/^docker:/,$ s/enabled: true/enabled: false/' /etc/scon/scon.yaml

	ip netns add left
	ip netns add right
	ip -n left link add eth0 type veth peer name eth0 netns right
	ip -n left address add 10.1.0.1/24 dev eth0
	ip -n right address add 10.1.0.2/24 dev eth0
	for end in left right; do
		ip -n $end link set lo up
		ip -n $end link set eth0 up
	done

	ip netns exec edge socat TCP4-LISTEN:7000,fork EXEC:cat &
	sleep 1
	(while echo question; do sleep 0.02; done) | $inside socat - TCP4:10.77.0.2:7000 >/dev/null &
}

groupadd() { echo "$1:x:900:" >>/etc/group; }

# outcome waits until the service works completely or has failed.
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
		# The daemon takes some seconds to identify a container.
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

# goes tests the function of a service, for up to some seconds.
goes() { # UNIT
	tries=0
	while [ $tries -lt 40 ]; do
		tries=$((tries + 1))
		try_$(echo $1 | tr - _) && return
		sleep 0.25
	done
	return 1
}

try_scon() {
	before=$(express_packets 2>/dev/null)
	sleep 1
	now=$(express_packets 2>/dev/null)
	test "${now:-0}" -gt "${before:-0}"
}

conf='{"cniVersion": "1.0.0", "name": "net", "type": "scon-cni", "bridge": "scon0", "isGateway": true, "agentDown": "error",
	"ipam": {"type": "scon", "subnet": "10.88.0.0/16"}}'

cni() { # VERB
	echo "$conf" | CNI_COMMAND=$1 CNI_CONTAINERID=pod CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=/usr/local/bin \
		scon-cni >/tmp/cni 2>&1
}

try_scon_startup() {
	ip netns add pod
	cni ADD && ip -n pod address show dev eth0 | grep -q 'inet 10.88' && cni DEL
	result=$?
	ip netns delete pod
	return $result
}

try_scon_pipe() {
	for engine in bpf copier; do
		ip netns exec right scon-pipe-load listen $engine:0.0.0.0:7000 --seconds 0.2 --warm 0.1 >/tmp/listen 2>&1 &
		listener=$!
		sleep 0.5
		# As a container's root: a user other than the broker's, without capabilities.
		ip netns exec left setpriv --bounding-set=-all --inh-caps=-all \
			scon-pipe-load connect $engine:10.1.0.2:7000 --seconds 0.2 --warm 0.1 >/tmp/connect 2>&1
		result=$?
		kill $listener 2>/dev/null || true
		wait $listener 2>/dev/null || true
		[ $result = 0 ] || return 1
	done
}

others() { # UNIT
	for unit in $units; do
		[ $unit = $1 ] || echo $unit
	done
}

restarts() { systemctl show --property NRestarts --value $1; }

with() { # UNIT SETTING...
	directory=/run/systemd/system/$1.service.d
	shift
	mkdir -p $directory
	{
		echo '[Service]'
		for setting; do echo "$setting"; done
	} >$directory/test.conf
	systemctl daemon-reload
}

build
systemd-analyze verify scon.service scon-startup.service scon-pipe.service && echo verified
systemctl start $units
echo "started: $(outcome)"
for unit in $units; do
	goes $unit && echo "$unit goes"
done
stat -c '%n %A %G' /run/scon/*.sock /run/scon/pipe/pipe.sock
wget -q -O - http://127.0.0.1:9477/metrics | grep '^scon_' >/dev/null && echo 'gives metrics'
scon status --json | grep -c '"running": true'
for unit in $units; do
	systemd-analyze security --offline=yes /usr/local/lib/systemd/system/$unit.service | tail -1 | LC_ALL=C sed 's/[^ -~]//g'
done

# A service that is killed or hangs is restarted; the others are not affected.
for unit in $units; do
	systemctl kill --signal KILL $unit
	for other in $(others $unit); do
		goes $other && echo "$unit killed: $other goes"
	done
	goes $unit && echo "$unit killed: restarts $(restarts $unit)"
done
for unit in $units; do
	with $unit WatchdogSec=3
	systemctl restart $unit
	goes $unit || true
	kill -STOP $(systemctl show --property MainPID --value $unit)
	for other in $(others $unit); do
		goes $other && echo "$unit hung: $other goes"
	done
	tries=0
	while [ "$(restarts $unit)" -lt 1 ] && [ $tries -lt 100 ]; do
		tries=$((tries + 1))
		sleep 0.25
	done
	goes $unit && echo "$unit hung: restarts $(restarts $unit)"
	journalctl --unit $unit --output cat --no-pager | grep -q 'Watchdog timeout' && echo "$unit hung: the watchdog saw it"
	rm -r /run/systemd/system/$unit.service.d
done
systemctl daemon-reload

# A reload takes what the file says now. Settings that are refused stop nothing, until
# somebody restarts the service: then it stays down, and is not started again and again.
# The pipe's connections end with a reload, but its settings have not changed.
sed -i 's/^metrics: .*/metrics: 127.0.0.1:9478/' /etc/scon/scon.yaml
for unit in $units; do
	process=$(systemctl show --property MainPID --value $unit)
	systemctl reload $unit
	goes $unit && [ $process = $(systemctl show --property MainPID --value $unit) ] && echo "$unit reloaded: goes"
done
wget -q -O - http://127.0.0.1:9478/metrics | grep '^scon_' >/dev/null && echo 'reloaded: gives metrics elsewhere'
echo 'colour: blue' >>/etc/scon/scon.yaml
for unit in $units; do
	systemctl reload $unit 2>/dev/null || echo "$unit refuses to reload"
	goes $unit && echo "$unit goes on"
done
for unit in $units; do
	systemctl restart $unit 2>/dev/null || true
	sleep 3
	echo "$unit restarted: $(systemctl show --property Result --value $unit)," \
		"status $(systemctl show --property ExecMainStatus --value $unit), restarts $(restarts $unit)"
done
sed -i '/^colour: blue$/d' /etc/scon/scon.yaml
systemctl start $units
for unit in $units; do
	goes $unit && echo "$unit mended: goes"
done

for unit in $units; do
	systemctl stop $unit
	systemctl show --property ActiveState,Result $unit
	for other in $(others $unit); do
		systemctl --quiet is-active $other && goes $other && echo "$unit stopped: $other goes"
	done
done
tc qdisc show | grep clsact || true
find /sys/fs/bpf/scon /run/scon -not -type d 2>/dev/null || true

for capability in $(systemctl show --property CapabilityBoundingSet --value scon); do
	with scon Restart=no "CapabilityBoundingSet=~$capability"
	systemctl start scon 2>/dev/null || true
	unnamed=0
	echo "without $capability: $(outcome)"
	systemctl stop scon
	systemctl reset-failed scon 2>/dev/null || true
done
for unit in scon-startup scon-pipe; do
	for capability in $(systemctl show --property CapabilityBoundingSet --value $unit); do
		with $unit Restart=no "CapabilityBoundingSet=~$capability"
		systemctl start $unit 2>/dev/null || true
		if try_$(echo $unit | tr - _); then echo "$unit without $capability: works"; else echo "$unit without $capability: does not work"; fi
		systemctl stop $unit
		systemctl reset-failed $unit 2>/dev/null || true
	done
done
