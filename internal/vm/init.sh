#!/bin/sh
# The guest's first process. Marks: see console.go.

/usr/bin/busybox --install -s /usr/bin
export PATH=/usr/sbin:/usr/bin HOME=/root

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /run/netns
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount --make-rshared /
ip link set lo up

printf '\n=== output\n'
setsid sh /command </dev/null 2>&1
status=$?
kill -9 -1 # whoever could still print
printf '\n=== exit %s\n' $status
dmesg | grep -A 30 -E 'WARNING:|BUG:|Oops|general protection|refcount_t'
printf '\n=== end\n'
sync
poweroff -f
