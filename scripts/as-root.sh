#!/bin/sh
# Runs "make TARGET-as-root VARIABLE=VALUE..." as root: by sudo, which asks now and not
# later, with this user's PATH and settings of Go and proxies. Go programs that are built
# there use the modules of the sources' owner, and a build cache of root's own.
#
# Usage: scripts/as-root.sh TARGET [VARIABLE=VALUE...]
set -eu
cd "$(dirname "$0")/.."
target=$1
shift

if [ "$(id -u)" != 0 ]; then
	echo "make $target makes network namespaces, which takes root: sudo make $target" >&2
	command -v sudo >/dev/null || { echo "there is no sudo: run it as root" >&2 && exit 1; }
	for name in $(env | sed -n 's/^\(GO[A-Z]*\|SCON_[A-Z]*\|https\{0,1\}_proxy\|no_proxy\)=.*/\1/p'); do
		set -- "$name=$(printenv "$name")" "$@"
	done
	exec sudo env "PATH=$PATH" "$@" "$0" "$target"
fi
if [ "$(stat --format %u .)" != 0 ]; then
	GOMODCACHE=$(scripts/as-owner.sh go env GOMODCACHE)
	export GOMODCACHE
	unset GOCACHE
fi
exec make "$target-as-root" "$@"
