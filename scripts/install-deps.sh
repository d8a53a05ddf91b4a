#!/bin/sh
# Installs the Debian packages that are missing for the sets named: what
# "make demo", "make test" and its longer forms need beside git, make and Go.
# Services that come along are neither started nor enabled, and nothing that is
# there is removed. A user's run names them and the command, and has sudo run it.
#
# Usage: scripts/install-deps.sh build|demo|test|startup|kernels|arm64|packages|image|k8s|peers|prometheus|web|race...
set -eu

# PACKAGE, or PACKAGE:PROGRAM (a name, or the path of any file) where another package may have it.
# A C compiler, for the programs that a container waits for, and what the pipe's
# examples decrypt with.
build="gcc:cc libc6-dev:/usr/include/stdio.h libssl-dev:/usr/include/openssl/evp.h"
# The lab, and the container of the demo. Before Debian 13 docker.io has the client.
demo="iproute2 iptables nftables busybox-static:busybox docker.io:dockerd docker-cli:docker"
# The programs that tests run.
test="bpftool conntrack ethtool ipset iputils-ping procps util-linux
	containernetworking-plugins:/usr/lib/cni/host-local docker.io:dockerd docker-cli:docker iperf3 haproxy mosquitto mosquitto-clients
	nginx-light:nginx curl wrk apache2-utils:ab python3:python3 redis-server redis-tools:redis-benchmark postgresql:pgbench musl-tools:musl-gcc"
# Containers that start with other plugins and runtimes than Docker's.
startup="busybox-static:busybox runc containerd containernetworking-plugins runsc qemu-system-x86
	openvswitch-switch:ovs-vswitchd podman netavark:/usr/lib/podman/netavark lxc:lxc-start"
# Guests with other kernels.
kernels="qemu-system-x86 kmod:depmod xz-utils:xz"
# Guests of another architecture.
arm64="qemu-system-arm:qemu-system-aarch64"
# Packages for both architectures.
packages="musl-dev:/usr/include/$(uname -m)-linux-musl gcc-aarch64-linux-gnu libc6-dev-arm64-cross lintian mmdebstrap arch-test"
# The image.
image="podman gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
# A cluster of Kubernetes' own programs.
k8s="etcd-server:etcd containerd containernetworking-plugins:/usr/lib/cni/host-local podman runc nftables iproute2"
# What tests of others need.
peers="jq mmdebstrap protobuf-compiler:protoc nghttp2-client:h2load nghttp2-server:nghttpd"
# Prometheus and promtool.
prometheus="prometheus"
# A browser, for the live page.
web="chromium tcpdump"
# The race detector, which is cgo.
race="gcc libc6-dev"

PATH=$PATH:/usr/sbin:/sbin

installed() {
	dpkg-query --show --showformat='${Package} ${db:Status-Status}\n' 2>/dev/null | sed -n 's/ installed$//p'
}

has() { # PROGRAM
	case $1 in
	/*) [ -e "$1" ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

before=$(installed)
missing=
for set in "$@"; do
	case $set in
	build | demo | test | startup | kernels | arm64 | packages | image | k8s | peers | prometheus | web | race) eval "entries=\$$set" ;;
	*) echo "install-deps.sh: no set of packages \"$set\"" >&2 && exit 2 ;;
	esac
	for entry in $entries; do
		package=${entry%:*}
		echo "$before" | grep -qx "$package" && continue
		[ "$package" != "$entry" ] && has "${entry#*:}" && continue
		case " $missing " in *" $package "*) continue ;; esac
		missing="$missing $package"
	done
done
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null || { echo "missing, by Debian's names, and there is no apt-get to install them:$missing" >&2 && exit 1; }
if [ "$(id -u)" != 0 ]; then
	echo "missing packages:$missing; to install them: sudo $0 $*" >&2
	command -v sudo >/dev/null || exit 1
	exec sudo "$0" "$@"
fi
echo "installing:$missing"

# invoke-rc.d asks this program whether a service may start: 101 is no.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	trap 'rm -f $policy' EXIT
	trap 'exit 1' INT TERM
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
fi

# apt's words matter only when it did not work.
apt() {
	words=$(DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" 2>&1) && return
	echo "apt-get $*: $words" >&2
	exit 1
}
apt update
case $missing in
*\ docker-cli*) apt-cache pkgnames docker-cli | grep -qx docker-cli || missing=$(echo "$missing" | sed 's/ docker-cli//') ;;
esac
[ -n "$missing" ] || exit 0
# shellcheck disable=SC2086 # a list of words
apt install --no-install-recommends --no-remove $missing

# What is new shall not start at the next boot either.
command -v systemctl >/dev/null || exit 0
for package in $(installed); do
	echo "$before" | grep -qx "$package" && continue
	dpkg --listfiles "$package" |
		sed -n 's,.*/systemd/system/\([^@/]*\.\(service\|socket\)\)$,\1,p'
done | xargs --no-run-if-empty systemctl --quiet disable
