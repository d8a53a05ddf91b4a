#!/bin/sh
# Measures what documents say of the pipe, and rewrites the summaries
# lab/results/pipe.json. Results with all samples, and plots, go to bin/results/. Takes
# some minutes on two idle CPUs. lab/docs/pipe-measuring.md says what is measured.
#
# Usage: lab/bench-pipe.sh [EXPERIMENT...]      all, or some of
#        engines apps
set -eu

cd "$(dirname "$0")/.."
scripts/install-deps.sh build demo
make build

# bench NAME FLAGS...
bench() {
	name=$1 && shift
	echo "== $name"
	mkdir -p bin/results
	bin/scon pipe bench --json "bin/results/$name.json" --plots "bin/results/$name" "$@"
	bin/scon bench summary lab/results/pipe.json "bin/results/$name.json"
}

[ $# -gt 0 ] || set -- engines apps
for experiment in "$@"; do
	case $experiment in
	engines) bench pipe --rounds 7 ;;
	apps) bench pipe-apps --apps --rounds 5 ;;
	*) echo "bench-pipe.sh: no experiment \"$experiment\"" >&2 && exit 2 ;;
	esac
done
