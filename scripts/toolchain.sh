#!/bin/sh
# Prints what has to come before PATH, with a colon: nothing, or the directory of the Go
# that go.mod names, where Go is older than 1.21 and cannot fetch that one itself. The
# module that newer Go would fetch is fetched as any other, and verified as any other.
set -eu
cd "$(dirname "$0")/.."

command -v go >/dev/null || exit 0
has=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
minor=${has#go1.}
[ "${minor%%[!0-9]*}" -lt 21 ] || exit 0

version=$(sed -n 's/^toolchain go//p' go.mod)
name=golang.org/toolchain@v0.0.1-go$version.$(go env GOOS)-$(go env GOARCH)
dir=$(go env GOMODCACHE)/$name
if [ ! -x "$dir/bin/go" ]; then
	echo "  GO      $version, since $has is older than 1.21" >&2
	(cd / && go mod download "$name") >&2
	chmod a+x "$dir"/pkg/tool/*/* "$dir"/bin/* # files of a module are not executable
fi
echo "$dir/bin:"
