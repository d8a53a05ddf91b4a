#!/bin/sh
# Init of guests without systemd.

/usr/bin/busybox --install -s /usr/bin
export PATH=/usr/sbin:/usr/bin HOME=/root

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/net /run/netns
mknod /dev/net/tun c 10 200 # opening it loads the module
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount --make-rshared /
ip link set lo up

exec sh /job
