#!/bin/sh
# Shows a real container on the express path: it sends to a machine outside, which
# is a network namespace made for it. The container is of the Docker that runs here,
# or, where none runs or SCON is up already, of a Docker engine in namespaces of its
# own. At the end everything that this makes is removed.
set -eu
cd "$(dirname "$0")/.."

missing=
for program in docker ip busybox unshare; do
	command -v $program >/dev/null || missing="$missing $program"
done
[ -z "$missing" ] || { echo "missing:$missing; scripts/install-deps.sh demo installs that" >&2 && exit 1; }

# own_machine runs this script in namespaces of its own, whose processes end with it.
own_machine() {
	group=scon-demo-$$
	made=
	trap remove_machine EXIT
	trap 'exit 1' INT TERM
	[ -d /etc/docker ] || { mkdir -p /etc/docker && made=yes; }
	env -u DOCKER_HOST -u DOCKER_CONTEXT unshare --mount --pid --net --fork --kill-child "$0" --own-machine $group
	exit
}

# remove_machine removes what outlives the namespaces.
remove_machine() {
	find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null || :
	[ -z "$made" ] || rmdir /etc/docker
}

# set_up_machine mounts what the machine keeps for itself, and starts a Docker engine.
set_up_machine() {
	mount --make-rprivate /
	mount -t proc proc /proc
	mount -t tmpfs -o mode=755 tmpfs /run
	mount -t tmpfs tmpfs /etc/docker
	mkdir /run/cgroup /run/netns
	# sysfs shows the devices of the network namespace that mounted it.
	if mountpoint -q /sys/fs/cgroup; then
		mount --rbind /sys/fs/cgroup /run/cgroup
		mount -t sysfs sysfs /sys
		mount --move /run/cgroup /sys/fs/cgroup
	else
		mount -t sysfs sysfs /sys
		mount -t cgroup2 cgroup2 /sys/fs/cgroup
	fi
	mount -t bpf bpf /sys/fs/bpf
	ip link set lo up
	dockerd --storage-driver=vfs --data-root=/run/docker-data --exec-opt=native.cgroupdriver=cgroupfs \
		--log-level=error --cgroup-parent="/$1" >/run/dockerd.log 2>&1 &
	engine=$!
	for _ in $(seq 300); do
		answer=$(docker info 2>&1 >/dev/null) && return
		kill -0 $engine 2>/dev/null || break
		sleep 0.1
	done
	kill -0 $engine 2>/dev/null && echo "dockerd runs, and does not answer within 30 s: $answer" >&2 ||
		echo "dockerd has ended:" >&2
	cat /run/dockerd.log >&2
	exit 1
}

whose="the Docker that is running here"
engine=
if [ "${1:-}" = --own-machine ]; then
	whose="a Docker engine in namespaces of its own"
	set_up_machine "$2"
elif ! docker info >/dev/null 2>&1 || bin/scon status >/dev/null 2>&1; then
	command -v dockerd >/dev/null || { echo "missing: dockerd, and no Docker answers here; scripts/install-deps.sh demo installs it" >&2 && exit 1; }
	own_machine
fi

name=scon-demo-$$ # of the namespace, the image and the container
host=198.51.100.1
outside=198.51.100.2
files=$(mktemp -d)
server=

clean_up() {
	set +e
	docker rm --force $name
	bin/scon down
	docker rmi $name
	kill "$server"
	ip link delete scon-demo
	ip netns delete $name
	rm -r "$files"
	if [ -n "$engine" ]; then
		kill "$engine"
		wait "$engine"
	fi
}
trap 'clean_up >/dev/null 2>&1' EXIT
trap 'exit 1' INT TERM

echo
echo "A container of $whose sends 128 MiB to $outside:"
echo

ip netns add $name
ip link add scon-demo type veth peer name eth0 netns $name
ip address add $host/30 dev scon-demo
ip link set scon-demo up
ip -n $name address add $outside/30 dev eth0
ip -n $name link set eth0 up
# nc goes when its input ends, so it has one that does not.
mkfifo "$files/input"
exec 3<>"$files/input"
ip netns exec $name timeout 60 busybox nc -l -p 7000 <&3 >/dev/null &
server=$!

# No registry is asked: the image is this machine's busybox.
busybox=$(command -v busybox)
for file in $(ldd "$busybox" 2>/dev/null | grep -o '/[^ ]*'); do
	cp --parents --dereference "$file" "$files"
done
cp "$busybox" "$files/busybox"
tar --create --exclude ./input --directory "$files" . | docker import - $name >/dev/null

bin/scon up
docker run --detach --name $name $name /busybox sh -c \
	"(/busybox dd if=/dev/zero bs=64k count=2048; /busybox sleep 30) | /busybox nc $outside 7000" >/dev/null

# The connection stays open for a while after the last byte.
for _ in $(seq 100); do
	bin/scon flows --json | grep -q '"state": "express"' && break
	sleep 0.1
done
sleep 3
bin/scon flows
echo
bin/scon status
