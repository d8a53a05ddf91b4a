#!/bin/sh
# Measures what documents say of the pipe, and rewrites results/pipe*.json, their
# tables (.md) and plots (results/pipe*/). Takes some minutes on two CPUs that
# nobody else uses. docs/pipe-measuring.md says what is measured.
#
# Usage: scripts/bench-pipe.sh [PART...]      all parts, or some of
#        engines apps
set -eu

cd "$(dirname "$0")/.."
scripts/install-deps.sh build demo
make build

# bench NAME FLAGS...
bench() {
	name=$1 && shift
	echo "== $name"
	bin/scon pipe bench --json "results/$name.json" --plots "results/$name" "$@" >"results/$name.md"
}

[ $# -gt 0 ] || set -- engines apps
for part in "$@"; do
	case $part in
	engines) bench pipe --rounds 7 ;;
	apps) bench pipe-apps --apps --rounds 5 ;;
	*) echo "bench-pipe.sh: no part \"$part\"" >&2 && exit 2 ;;
	esac
done
