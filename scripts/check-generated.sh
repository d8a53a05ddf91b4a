#!/bin/sh
# Fails if the generated files of internal/ differ from what their sources in
# bpf/ make now.
set -eu

cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' INT TERM

cp -r go.mod go.sum bpf internal "$fresh"
(cd "$fresh" && go generate ./internal/...)
if ! diff --recursive --brief internal "$fresh/internal"; then
	clang --version | head -1
	echo "generated files differ from what their source makes: \"make generate\" (with Debian 12's clang 14) mends that" >&2
	exit 1
fi
