#!/bin/sh
# Runs a command with mounts, names of network namespaces, records of topologies,
# files in memory and pinned BPF objects of its own: it sees none of the machine's,
# and all of them end with it.
#
# Usage: scripts/with-own-mounts.sh COMMAND [ARG...]
set -eu

if [ "${OWN_MOUNTS:-}" != yes ]; then
	OWN_MOUNTS=yes exec unshare --mount "$0" "$@"
fi
unset OWN_MOUNTS
for records in /run/netns /run/scon-lab /run/scon-latency; do
	mkdir -p "$records"
	mount -t tmpfs tmpfs "$records"
done
mount -t tmpfs tmpfs /dev/shm
if mountpoint --quiet /sys/fs/bpf; then
	mount -t bpf bpf /sys/fs/bpf
fi
exec "$@"
