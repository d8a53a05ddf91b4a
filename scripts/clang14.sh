#!/bin/sh
# Runs a command with Debian 12's clang, llvm-objcopy, llvm-strip and clang-format 14,
# libbpf's and the kernel's headers, whatever this system has: others make other BPF
# objects and format otherwise. Nothing is installed: they are in the cache of downloads.
# Where apt has no Debian mirror: exit status 3.
#
# Usage: scripts/clang14.sh COMMAND [ARG...]
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)

# The C library, libstdc++ and libgcc are this system's: they are the same or newer.
packages="clang-14 libclang-cpp14 libclang-common-14-dev libllvm14 llvm-14 clang-format-14 libbpf-dev linux-libc-dev
	libbsd0 libedit2 libffi8 libicu72 liblzma5 libmd0 libtinfo6 libxml2 libz3-4 zlib1g"

# Not "go run", which has no exit status but 1.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
go build -C "$scripts/../test" -o "$work/unpacked" ./bed/vm/unpacked
# shellcheck disable=SC2086 # a list of words
CLANG14=$("$work/unpacked" "$(go env GOHOSTARCH)" clang14 $packages)
rm -rf "$work"
export CLANG14
PATH=$scripts/clang14:$PATH exec "$@"
