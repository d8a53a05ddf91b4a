#!/bin/sh
# Runs "make TARGET-as-root" as root, with the variables of this make's command line: by
# sudo, which asks now and not later, with this user's PATH, proxies and Go settings.
#
# Go programs that root builds have caches of root's own. What the owner of these sources
# has fetched is not fetched again: root reads it as a proxy's files, and writes none there.
#
# Usage: scripts/as-root.sh TARGET
set -eu
cd "$(dirname "$0")/.."
target=$1

# Settings that change which bytes Go fetches, and from where; `go env -w` may have written them.
settings="GOFLAGS GOINSECURE GONOPROXY GONOSUMDB GOPRIVATE GOPROXY GOSUMDB GOTOOLCHAIN GOVCS"
if command -v go >/dev/null; then
	for name in $settings; do
		value=$(scripts/as-owner.sh go env "$name")
		export "$name=$value"
	done
	OWNER_GOCACHE=$(scripts/as-owner.sh go env GOCACHE)
	OWNER_GOMODCACHE=$(scripts/as-owner.sh go env GOMODCACHE)
	export OWNER_GOCACHE OWNER_GOMODCACHE
fi

if [ "$(id -u)" != 0 ]; then
	echo "make $target makes network namespaces, which takes root: sudo make $target" >&2
	command -v sudo >/dev/null || { echo "there is no sudo: run it as root" >&2 && exit 1; }
	set --
	for name in PATH MAKEFLAGS OWNER_GOCACHE OWNER_GOMODCACHE $settings \
		$(env | sed -n 's/^\(SCON_[A-Z_]*\|[a-z]*_proxy\|[A-Z]*_PROXY\)=.*/\1/p'); do
		if value=$(printenv "$name"); then
			set -- "$@" "$name=$value"
		fi
	done
	exec sudo env "$@" "$0" "$target"
fi

if [ "$(stat -c %u .)" != 0 ]; then
	unset GOBIN GOCACHE GOENV GOMODCACHE GOPATH GOTMPDIR XDG_CACHE_HOME XDG_CONFIG_HOME
	HOME=$(getent passwd root | cut -d: -f6)
	if [ -n "${OWNER_GOMODCACHE:-}" ]; then
		GOPROXY=file://$OWNER_GOMODCACHE/cache/download,$GOPROXY
		PATH=$(scripts/as-owner.sh go env GOROOT)/bin:$PATH
	fi
	# Go asks git about the sources, which trusts no other user's.
	export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0="$PWD"
fi
exec make "$target-as-root"
