#!/bin/sh
# Shows a real container on the express way, if Docker is running: it sends to a
# machine outside, which is a network namespace made for it. In the end all that
# this makes is removed.
set -eu
cd "$(dirname "$0")/.."

if ! docker info >/dev/null 2>&1; then
	echo "Docker is not running here: no real container is shown."
	exit 0
fi
if bin/scon status >/dev/null 2>&1; then
	echo "SCON is up here already: no real container is shown, to leave it alone."
	exit 0
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
}
trap 'clean_up >/dev/null 2>&1' EXIT
trap 'exit 1' INT TERM

echo
echo "A container of the Docker that is running here sends 128 MiB to $outside:"
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
sleep 1
bin/scon flows
echo
bin/scon status
