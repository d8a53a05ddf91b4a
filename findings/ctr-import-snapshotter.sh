#!/bin/sh
# containerd: "ctr images import --snapshotter S" refuses each S that is not in its settings.
#
# Seen with 2.1.9, also with Debian's: since 2.1 ctr imports by the transfer service, which unpacks
# only into the snapshotters of its "unpack_config": by default the platform's one, overlayfs. Asked
# for another one that is loaded, as "native", it finds no platform at all, and says "no unpack
# platforms defined: invalid argument", which names neither the snapshotter nor the setting.
# "--local" imports as earlier versions did.
#
# What it taught: settings of containerd that choose a snapshotter for CRI name it in
# "unpack_config", too; containerd 1.6 and 1.7 ignore that (test/docker, internal/startup, lab/startbench).
#
# Needs root and Go. Exit status 1: containerd behaves otherwise.
set -eu

dir=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || { kill "$daemon"; wait "$daemon" || :; }; chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
mkdir "$dir/work"
cd "$dir/work"
cat >go.mod <<'END'
module finding

go 1.24.3

require github.com/containerd/containerd/v2 v2.1.9
END
(
	export GOFLAGS=-mod=mod GOPATH="$dir/go" GOWORK=off CGO_ENABLED=0
	go build -trimpath -o . github.com/containerd/containerd/v2/cmd/containerd github.com/containerd/containerd/v2/cmd/ctr 2>log || { cat log >&2; exit 1; }
)

# An image of one empty layer, as "docker save" writes it.
sum() { sha256sum "$1" | cut -d ' ' -f 1; }
tar --create --file layer.tar --files-from /dev/null
echo "{\"architecture\":\"$(go env GOARCH)\",\"os\":\"linux\",\"config\":{},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$(sum layer.tar)\"]}}" >config.json
echo '[{"Config":"config.json","RepoTags":["localhost/empty:1"],"Layers":["layer.tar"]}]' >manifest.json
tar --create --file image.tar config.json layer.tar manifest.json

ctr() { ./ctr --address "$dir/socket" "$@"; }

start() { # FILE: settings
	printf 'version = 3\nroot = "%s/root"\nstate = "%s/state"\ndisabled_plugins = ["io.containerd.internal.v1.opt"]\n[grpc]\n  address = "%s/socket"\n' \
		"$dir" "$dir" "$dir" | cat - "$1" >config.toml
	./containerd --config config.toml >log 2>&1 &
	daemon=$!
	for _ in $(seq 100); do
		ctr version >/dev/null 2>&1 && return
		sleep 0.1
	done
	cat log >&2
	return 1
}

stop() {
	kill "$daemon"
	wait "$daemon" || :
	daemon=
}

import() { # OPTION
	status=0
	said=$(ctr images import --snapshotter native "$@" image.tar 2>&1) || status=$?
	echo "import${1:+ $1}: exit status $status$(echo "$said" | grep -o ': no unpack platforms.*')"
}

: >default
cat >native <<'END'
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "native"
END
{
	start default
	echo "native is $(ctr plugins ls | awk '$1 == "io.containerd.snapshotter.v1" && $2 == "native" { print $NF }')"
	import
	import --local
	stop
	start native
	import
	stop
} >out
cat out
[ "$(cat out)" = 'native is ok
import: exit status 1: no unpack platforms defined: invalid argument
import --local: exit status 0
import: exit status 0' ]
