#!/bin/sh
# fuzz.sh [SECONDS]: run every fuzz test of this tree, which share that time (3600). Go
# keeps an input that fails in the package's testdata/fuzz, and those that reach new code
# in its cache, from which the next run goes on.
set -eu
cd "$(dirname "$0")/.."
total=${1:-3600}
list=$(grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's|^\./||; s|/[^/]*:func | |' | sort -u)
count=$(echo "$list" | wc -l)
each=$((total / count))
[ "$each" -gt 0 ] || each=1
echo "$count fuzz tests, ${each} s each"
failed=0
while read -r dir name; do
	echo "== $dir $name"
	module=${dir%%/*}
	[ -e "$module/go.mod" ] || module=.
	scripts/with-own-mounts.sh go test -C "$module" -vet=off -run '^$' -fuzz "^$name\$" -fuzztime "${each}s" -timeout 2h "./${dir#"$module/"}" </dev/null || failed=$((failed + 1))
done <<EOF
$list
EOF
[ "$failed" = 0 ] || { echo "$failed fuzz tests failed: see testdata/fuzz of their packages" >&2; exit 1; }
