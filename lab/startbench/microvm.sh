#!/bin/busybox sh
# Init of a microVM: sets the address from the kernel's command line, reports that it
# is up, and answers pings.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
for word in $($b cat /proc/cmdline); do
	case $word in
	addr=*) addr=${word#addr=} ;;
	gateway=*) gateway=${word#gateway=} ;;
	esac
done
if [ -n "$addr" ]; then
	for module in failover net_failover virtio_net; do
		$b insmod /$module.ko
	done
	$b ip link set lo up
	$b ip link set eth0 up
	$b ip addr add "$addr" dev eth0
	[ -z "$gateway" ] || $b ip route add default via "$gateway"
fi
echo guest-is-up
$b sleep 900
$b poweroff -f
