#!/bin/sh
# Copies README.md and docs/ into a directory, as packages install them: links to files of
# the sources that are not there become whole addresses.
#
# Usage: scripts/package-docs.sh DIRECTORY
set -eu

sources=$(sed -n 's/^homepage: //p' packaging/nfpm/common.yaml)/blob/main
cp README.md "$1/README.md"
cp -r docs "$1/docs"
sed -i -E "s,\]\(([^)#:]+)([)#]),](@/\1\2,g; s,\]\(@/docs/,](docs/,g; s,\]\(@/,]($sources/,g" "$1/README.md"
sed -i -E "s,\]\(\.\./,](@/,g; s,\]\(@/README\.md,](../README.md,g; s,\]\(@/,]($sources/,g" "$1"/docs/*.md
sed -i -E "s,\]\(\.\./\.\./,](@/,g; s,\]\(@/README\.md,](../../README.md,g; s,\]\(@/,]($sources/,g" "$1"/docs/guides/*.md
