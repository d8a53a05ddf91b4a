#!/bin/sh
# Makes a directory for `docker plugin create NAME DIRECTORY`: Docker's network driver as a
# managed plugin, with this machine's iptables. docs/docker-driver.md
#
# Usage: scripts/docker-plugin.sh DIRECTORY [SCON]
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
scon=${2:-bin/scon}
PATH=$PATH:/usr/sbin:/sbin

iptables=$(readlink --canonicalize "$(command -v iptables)")
case $iptables in
*-nft-multi) ;;
# Two programs that do not share its lock lose each other's rules.
*) echo "docker-plugin.sh: $iptables is not iptables with nftables: run the driver as a service" >&2 && exit 1 ;;
esac

root=$out/rootfs
rm -rf "$root"
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/etc/scon" "$root/run/docker/plugins" "$root/run/scon" "$root/var/lib/scon" "$root/proc" "$root/sys" "$root/tmp"
cp packaging/docker-plugin/config.json "$out"
cp "$scon" "$root/usr/bin/scon"
cp "$iptables" "$root/usr/sbin"
for name in iptables ip6tables iptables-restore ip6tables-restore; do
	ln -s "${iptables##*/}" "$root/usr/sbin/$name"
done
ldd "$iptables" | grep -o '/[^ ]*' | while read -r library; do
	cp --dereference --parents "$library" "$root"
done
find /usr/lib/*/xtables -name '*.so' -exec cp --parents {} "$root" \;
echo 'docker: {enabled: true}' >"$root/etc/scon/scon.yaml"
