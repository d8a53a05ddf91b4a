#!/bin/sh
# Unpacks libraries of another architecture from this machine's Debian mirror: headers
# into DIRECTORY/include, libraries into DIRECTORY/lib. Nothing is installed.
#
# Usage: scripts/sysroot.sh ARCH DIRECTORY PACKAGE...
set -eu
arch=$1
dir=$2
shift 2
mkdir -p "$dir/lists/partial" "$dir/archives/partial" "$dir/root"
: >"$dir/status"
in_dir() { # COMMAND...
	program=$1
	shift
	(cd "$dir/archives" && "$program" -qq -o "APT::Architecture=$arch" -o "APT::Architectures::=$arch" -o "Dir::State=$dir" \
		-o "Dir::State::status=$dir/status" -o "Dir::Cache=$dir" -o APT::Sandbox::User=root "$@")
}
in_dir apt-get update
for package; do
	in_dir apt-get download "$package:$arch"
done
for deb in "$dir"/archives/*.deb; do
	dpkg-deb --extract "$deb" "$dir/root"
done
mkdir -p "$dir/include" "$dir/lib"
cp -r "$dir"/root/usr/include/. "$dir/include"
for machine in "$dir"/root/usr/include/*-linux-gnu "$dir"/root/usr/lib/*-linux-gnu; do
	case $machine in
	*/include/*) cp -r "$machine/." "$dir/include" ;;
	*) cp -a "$machine/." "$dir/lib" ;;
	esac
done
