#!/bin/sh
# Fails if generated files of internal/, the settings' file and docs/json.md are not what
# their sources generate now.
set -eu

cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' INT TERM

cp -r go.mod go.sum bpf cmd docs internal libsconpipe packaging "$fresh"
(cd "$fresh" && go generate ./internal/...)
if ! diff --recursive --brief internal "$fresh/internal" || ! diff packaging/scon.yaml "$fresh/packaging/scon.yaml" ||
	! diff docs/json.md "$fresh/docs/json.md"; then
	clang --version | head -1
	echo "generated files are outdated: run \"make generate\" with the clang 14 of Debian 12" >&2
	exit 1
fi
