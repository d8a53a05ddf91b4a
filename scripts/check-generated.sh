#!/bin/sh
# Fails if generated files of internal/ and lab/, the settings' file and docs/json.md are not what
# their sources generate now.
set -eu

cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' INT TERM

cp -r go.mod go.sum bpf cmd docs internal lab libsconpipe packaging scripts test "$fresh"
clang14=$PWD/scripts/clang14.sh
status=0
"$clang14" true || status=$?
if [ $status = 3 ]; then
	echo "left out: check-generated, which needs Debian 12's clang 14" >&2
	exit 0
fi
(cd "$fresh" && "$clang14" go generate ./internal/... && "$clang14" go generate -C lab ./...)
if ! diff --recursive --brief internal "$fresh/internal" || ! diff --recursive --brief lab "$fresh/lab" || ! diff packaging/scon.yaml "$fresh/packaging/scon.yaml" ||
	! diff docs/json.md "$fresh/docs/json.md"; then
	echo "generated files are outdated: run \"make generate\"" >&2
	exit 1
fi
