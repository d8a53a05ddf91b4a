# Installs the packages in a Debian system with Docker, upgrades them under traffic, and
# removes and purges them. Prints a line with the outcome of each step to /results, which
# ends the output.
#
#	 edge                 this machine                     container
#	+-----------+    +-------------------------+    +-----------------+
#	| 10.77.0.2 |====| 10.77.0.1       docker0 |====| 172.17.0.2      |
#	+-----------+    +-------------------------+    +-----------------+
exec 3>/results
trap 'journalctl --unit scon --unit docker --output cat --no-pager | tail -60; printf "\n=== results\n"; cat /results' EXIT
say() { echo "$*" >&3; }

ip netns add edge
ip link add eth0 type veth peer name eth0 netns edge
ip address add 10.77.0.1/24 dev eth0
ip -n edge address add 10.77.0.2/24 dev eth0
ip link set eth0 up
ip -n edge link set eth0 up
ip -n edge link set lo up
ip route add default via 10.77.0.2
ip netns exec edge socat TCP4-LISTEN:7000,fork,reuseaddr EXEC:cat &

# The system is in a RAM disk.
mkdir -p /etc/systemd/system/docker.service.d
printf '[Service]\nEnvironment=DOCKER_RAMDISK=true\n' >/etc/systemd/system/docker.service.d/ram.conf
systemctl daemon-reload
systemctl start docker || exit 1
mkdir -p /image/bin /image/tmp
cp "$(command -v busybox)" /image/bin/busybox
for applet in sh nc sleep cat; do ln -s busybox /image/bin/$applet; done
tar -C /image -c . | docker import - busybox >/dev/null || exit 1

# What is not the packages' before they are installed.
trace() { find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path /old -o -path /new -o -path /image -o -path /var/lib/docker -o -path /var/log -o -path /var/cache -o -path /run/docker -o -path /run/containerd -o -path /run/systemd \) -prune -o -name '*scon*' -print | sort; }
trace >/tmp/trace.before

export DEBIAN_FRONTEND=noninteractive
dpkg --install /old/*.deb || exit 1
attached() { { tc filter show dev docker0 ingress; for d in /sys/class/net/*; do tc qdisc show dev "${d##*/}"; done; } | grep -q clsact || ls /sys/fs/bpf/scon >/dev/null 2>&1; }
systemctl --quiet is-enabled scon.service || systemctl --quiet is-active scon.service || attached || say 'installed: not enabled, not running, nothing attached'

docker run --detach --security-opt apparmor=unconfined --name web busybox sh -c 'i=0; while :; do i=$((i + 1)); echo $i; sleep 0.02; done | nc 10.77.0.2 7000 >/tmp/echoed' || exit 1
echoed() { docker exec web cat /tmp/echoed; }
goes() {
	was=$(echoed | wc -l)
	sleep 2
	[ "$(echoed | wc -l)" -gt "$was" ]
}
goes && say 'regular: goes'

express() {
	tries=0
	while [ $tries -lt 60 ]; do
		tries=$((tries + 1))
		scon flows --json 2>/dev/null | grep -q '"state": "express"' && return
		sleep 0.5
	done
	return 1
}
sed -i 's/^connections: .*/connections: 1024/' /etc/scon/scon.yaml
systemctl enable --now scon || exit 1
express && say 'enabled: express'

dpkg --install /new/*.deb || exit 1
express && grep -q '^connections: 1024' /etc/scon/scon.yaml && say "upgraded: version $(scon version --json | sed -n 's/.*"version": "\(.*\)".*/\1/p'), express, settings kept"

systemd-analyze verify scon.service scon-startup.service scon-pipe.service && CNI_COMMAND=VERSION scon-cni | grep -q supportedVersions &&
	scon run -- /usr/bin/ip -V >/dev/null && say "upgraded: units are right, programs run on $(dpkg --print-architecture)"

systemctl start scon-startup scon-pipe && [ "$(systemctl is-active scon-startup scon-pipe)" = "active
active" ] && say 'upgraded: the other services run'

# A drop-in, where `systemctl edit scon` writes it.
mkdir /etc/systemd/system/scon.service.d
cp /drop-in.conf /etc/systemd/system/scon.service.d/override.conf
systemctl daemon-reload
systemctl restart scon
pid=$(systemctl show --property MainPID --value scon)
express && [ "$(cat /sys/fs/cgroup/system.slice/scon.service/memory.max)" = 4294967296 ] && tr '\0' '\n' <"/proc/$pid/environ" | grep -qx GOMAXPROCS=2 && say 'drop-in: in force, express'
systemctl revert scon
systemctl restart scon
express && [ "$(cat /sys/fs/cgroup/system.slice/scon.service/memory.max)" = 2147483648 ] && [ ! -e /etc/systemd/system/scon.service.d ] && say 'drop-in: reverted, express'

goes
journalctl --unit scon --output cat --no-pager >/tmp/journal
echoed >/tmp/echoed
[ "$(wc -l </tmp/echoed)" = "$(tail -1 /tmp/echoed)" ] && [ "$(grep -c 'took over Conentries.*kept=[1-9]' /tmp/journal)" = 3 ] && say 'all three times: nothing lost, connections taken over'

grep -q 'level=\(ERROR\|WARN\)' /tmp/journal || say 'all three times: neither error nor warning'

dpkg --remove libsconpipe-dev scon-lab scon-pipe scon-startup scon || exit 1
goes && ! attached && ! systemctl --quiet is-active scon.service && say 'removed: nothing attached, goes'
[ -e /etc/scon/scon.yaml ] && say 'removed: settings kept'

dpkg --purge scon-lab scon-pipe scon-startup libsconpipe-dev libsconpipe0 || exit 1
# The node runs a service from an image by now.
mkdir -p /run/scon/startup
flock /run/scon/startup/lock sleep 1000 &
until [ -e /run/scon/startup/lock ]; do sleep 0.1; done
dpkg --purge scon || exit 1
[ -e /run/scon/startup/lock ] && say 'purged: what a service from elsewhere holds stays'
kill $!
rm -r /run/scon
trace >/tmp/trace.after
diff /tmp/trace.before /tmp/trace.after && say 'purged: nothing left'
docker rm --force web >/dev/null
