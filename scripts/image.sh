#!/bin/sh
# Makes the image of these sources for amd64 and arm64: as IMAGE:VERSION in podman's
# storage, and as an OCI archive in a directory, for `podman load`, `skopeo copy` or
# `ctr image import`.
#
# Usage: scripts/image.sh DIRECTORY [IMAGE]
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
image=${2:-localhost/scon}
cd "$(dirname "$0")/.."
# Git trusts no other user's sources, and root runs this for podman.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0="$PWD"

version=${VERSION:-$(scripts/version.sh)}
tag=$(printf %s "$version" | tr -c 'A-Za-z0-9_.-' -) # tags have no ~ and no +
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

for triplet in amd64:x86_64-linux-gnu arm64:aarch64-linux-gnu; do
	arch=${triplet%:*} cc=${triplet#*:}-gcc
	[ "$arch" != "$(dpkg --print-architecture)" ] || cc=cc
	mkdir "$work/$arch"
	make BIN="$work/$arch" CC="$cc" "$work/$arch/scon-cni"
	GOARCH=$arch GOFLAGS=-buildvcs=true make scon SCON="$work/$arch/scon" VERSION="$version"
	chmod 755 "$work/$arch/scon" "$work/$arch/scon-cni"
done
podman manifest rm "$image:$tag" >/dev/null 2>&1 || podman rmi --force "$image:$tag" >/dev/null 2>&1 || true
podman build --quiet --isolation chroot --platform linux/amd64,linux/arm64 --manifest "$image:$tag" --timestamp "$epoch" \
	--build-arg VERSION="$version" --build-arg REVISION="$(git rev-parse HEAD)" \
	--build-arg CREATED="$(TZ=UTC date --date="@$epoch" +%FT%TZ)" \
	--file packaging/image/Containerfile "$work" >/dev/null
archive=$out/scon-$tag-image.tar
rm -f "$archive"
podman manifest push --quiet --all "$image:$tag" "oci-archive:$archive:$image:$tag" >/dev/null
chown --reference="$out" "$archive"
printf '  %-8s%s\n' IMAGE "$image:$tag" FILE "$archive"
