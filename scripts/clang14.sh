#!/bin/sh
# Runs a command with Debian 12's clang, LLVM tools, clang-format 14, libbpf and kernel
# headers, whatever this system has: others make other BPF objects and format otherwise.
# They are fetched once from the Debian mirror of this machine's apt into the cache of
# downloads, and nothing is installed. Where apt has no Debian mirror: exit status 3.
#
# Usage: scripts/clang14.sh COMMAND [ARG...]
set -eu

triplet=$(uname -m)-linux-gnu
dir=${SCON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scon}/clang14-$(uname -m)
if [ ! -e "$dir" ]; then
	mirror=
	if command -v apt-get >/dev/null; then
		mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 'Created-By: Packages' | head -1)
	fi
	[ -n "$mirror" ] || { echo "clang 14 of Debian 12 is not to be had: apt has no Debian mirror here, or needs apt-get update" >&2 && exit 3; }
	mkdir -p "${dir%/*}"
	work=$(mktemp -d "$dir.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' INT TERM
	mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/usr"
	: >"$work/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" >"$work/sources.list"
	# The cleared lists are hooks of this machine's apt.
	cat >"$work/apt.conf" <<-END
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
		#clear DPkg::Post-Invoke;
		APT::Sandbox::User "";
		APT::Default-Release "";
		APT::Install-Recommends "false";
		Acquire::Languages "none";
		Debug::NoLocking "true";
		Dir::State "$work";
		Dir::State::status "$work/status";
		Dir::Cache "$work";
		Dir::Etc::sourcelist "$work/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::Etc::preferences "/dev/null";
		Dir::Etc::preferencesparts "/dev/null";
	END
	echo "fetching clang 14 of Debian 12 into $dir" >&2
	apt-get -qq --config-file "$work/apt.conf" update
	apt-get -qq --config-file "$work/apt.conf" install --download-only --yes clang-14 llvm-14 clang-format-14 libbpf-dev linux-libc-dev >/dev/null
	mkdir "$work/root"
	for deb in "$work"/archives/*.deb; do
		dpkg-deb --extract "$deb" "$work/root"
	done
	# This system's C libraries are newer, and have to go with its loader.
	rm -rf "$work/root/lib" "$work/root/usr/lib/$triplet"/lib[cm].so* "$work/root/usr/lib/$triplet"/libstdc++* "$work/root/usr/lib/$triplet"/libgcc_s*
	for library in "$work"/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$library" | tar --extract --directory "$work/root" --wildcards --keep-old-files "./lib/$triplet/lib[!cmdrpu]*" 2>/dev/null || :
	done
	rm -rf "$work/root/lib/$triplet"/ld-* "$work/root/lib/$triplet"/libgcc_s*
	rm -rf "$work/root/usr/share" "$work/root/usr/bin" "$work/root"/usr/lib/llvm-14/lib/*.a
	mkdir "$work/root/bin14"
	for tool in clang clang-format llvm-objcopy llvm-strip; do
		cat >"$work/root/bin14/$tool" <<-END
			#!/bin/sh
			root=\${0%/*}/..
			LD_LIBRARY_PATH=\$root/usr/lib/$triplet:\$root/lib/$triplet:\$root/usr/lib/llvm-14/lib exec "\$root/usr/lib/llvm-14/bin/$tool" $([ $tool != clang ] || echo "-idirafter \"\$root/usr/include/$triplet\" -isystem \"\$root/usr/include\"") "\$@"
		END
		chmod 755 "$work/root/bin14/$tool"
	done
	mv "$work/root" "$dir" 2>/dev/null || [ -e "$dir" ]
fi
PATH=$dir/bin14:$PATH exec "$@"
