#!/bin/sh
# Runs a command as a user of a system whose files are in an archive, as on a machine of
# its own: files, processes, mounts and control groups are its own. All of them are gone
# when the command ends, and when standard input ends, as it does when the caller is killed.
#
# The user may use sudo, unless it is called plain. The commit that is checked out in a
# repository is in /srv/scon.bundle, which git clones.
#
# It has to be the leader of a process group, which ends with it.
#
# Usage: enter.sh ARCHIVE REPOSITORY USER COMMAND [FLAG...], flags of unshare(1) such as --net
set -eu

groups() { # FILE-SYSTEM-TYPES... of the control groups that are mounted: MOUNT TYPE OPTIONS
	awk '$3 ~ /^cgroup2?$/ { print $2, $3, $4 }' /proc/self/mounts
}

if [ "${1:-}" = --inside ]; then
	root=$2 user=$3 command=$4
	mount --make-rprivate /
	mount --bind "$root" "$root"
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	mkdir -p "$root/run/lock"
	mount -t sysfs sysfs "$root/sys"
	# A group is mounted anew, so that its namespace is what the root sees.
	groups | while read -r at type options; do
		[ "$at" = /sys/fs/cgroup ] || mountpoint --quiet "$root/sys/fs/cgroup" ||
			mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
		mkdir -p "$root$at"
		mount -t "$type" -o "$options" "$type" "$root$at"
	done
	mount -t bpf bpf "$root/sys/fs/bpf"
	for trace in tracing:tracefs debug:debugfs; do
		mount -t ${trace#*:} ${trace#*:} "$root/sys/kernel/${trace%:*}" || :
	done
	# Not chroot: the kernel refuses user namespaces there, and the namespace's root is the machine's still.
	cd "$root"
	pivot_root . .
	umount -l .
	cd /
	# Not exec: the first process of a PID namespace has to wait for all that lose their parents.
	setpriv --pdeathsig KILL runuser -l "$user" -c "$command" </dev/null &
	wait $!
	exit
fi

archive=$1 repository=$2 user=$3 command=$4
shift 4
root=$(mktemp -d "${TMPDIR:-/var/tmp}/scon-fresh.XXXXXX")
name=$(basename "$root")

# clean_up ends what runs in the groups, and removes them and the files.
clean_up() {
	groups | while read -r at _; do
		[ -d "$at/$name" ] || continue
		for _ in $(seq 100); do
			find "$at/$name" -name cgroup.procs -exec cat {} + | xargs --no-run-if-empty kill -KILL 2>/dev/null || :
			find "$at/$name" -depth -type d -exec rmdir {} + 2>/dev/null && break
			sleep 0.1
		done
	done
	for _ in $(seq 100); do # what was killed may write its last file
		rm -rf --one-file-system "$root" 2>/dev/null && break
		sleep 0.1
	done
}

# The first of both that ends has everything cleaned up: the command, or standard input.
exec 3<&0
(
	trap '' HUP INT TERM
	cat <&3 >/dev/null
	kill -TERM 0
	clean_up
) >/dev/null &
watcher=$!

tar --extract --directory "$root" --file "$archive" --exclude './dev/*'
cp --dereference /etc/resolv.conf /etc/hosts /etc/hostname "$root/etc"
# The machine's registries may have certificates that only the machine knows.
cp /etc/ssl/certs/ca-certificates.crt "$root/usr/local/share/ca-certificates/machine.crt"
chroot "$root" update-ca-certificates >/dev/null 2>&1
# The repository may be a user's, whose git trusts root's files, and root's not the user's.
git -c safe.directory="$repository" -C "$repository" bundle create --quiet "$root/srv/scon.bundle" HEAD
[ "$user" = root ] || chroot "$root" useradd --create-home --shell /bin/bash "$user"
if [ "$user" != root ] && [ "$user" != plain ]; then
	echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
fi
groups | while read -r at type _; do
	[ "$type" = cgroup ] || [ "$type" = cgroup2 ] || continue
	mkdir "$at/$name"
	for file in cpuset.cpus cpuset.mems; do # of a new group of version 1 they are empty
		[ ! -e "$at/$name/$file" ] || [ "$type" = cgroup2 ] || cat "$at/$file" >"$at/$name/$file"
	done
	[ ! -e "$at/cgroup.clone_children" ] || echo 1 >"$at/$name/cgroup.clone_children"
done
status=0
sh -c 'for group in $(awk '\''$3 ~ /^cgroup2?$/ { print $2 }'\'' /proc/self/mounts); do echo $$ >"$group/'"$name"'/cgroup.procs"; done
	exec unshare --mount --pid --cgroup --ipc --uts --fork --kill-child "$@"' - "$@" "$0" --inside "$root" "$user" "$command" || status=$?
kill "$watcher" 2>/dev/null || :
clean_up
exit $status
