#!/bin/sh
# Makes the packages of these sources in a directory, for amd64 and arm64:
#
#	NAME_VERSION-1_ARCH.deb, NAME-VERSION-1.ARCH.rpm   of packaging/nfpm
#	scon-VERSION-linux-ARCH.tar.gz                  what is static, and what belongs to it
#	scon-VERSION.cdx.json, scon-lab-VERSION.cdx.json   which libraries are in them (CycloneDX)
#	SHA256SUMS
#
# The same sources give the same bytes. VERSION overrides scripts/version.sh.
#
# Usage: scripts/packages.sh DIRECTORY
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."

VERSION=${VERSION:-$(scripts/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export VERSION SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

say() { printf '  %-8s%s\n' "$1" "$2"; }

# archive packs a directory's content: the same files give the same bytes.
archive() { # DIRECTORY FILE
	tar --directory "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
		--format=ustar --create . | gzip -9n >"$2"
}

# stage installs everything below $work/$1/all, where paths are as in packages. LIBRARIES
# has OpenSSL and musl's headers for another architecture.
stage() { # ARCH TRIPLET [LIBRARIES]
	all=$work/$1/all
	prefix=
	[ "$2" = "$(cc -dumpmachine)" ] || prefix=$2-
	flags="-O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffile-prefix-map=$PWD=."
	for target in "build cuda" install; do
		# shellcheck disable=SC2086 # a list of targets
		GOARCH=$1 make $target BIN="$work/$1/bin" HOST_SCON="$work/$(dpkg --print-architecture)/bin/scon" \
			DESTDIR="$all" PREFIX=/usr LIBDIR="/usr/lib/$2" VERSION="$VERSION" MUSL="${3-}/usr/include/${2%-gnu}-musl" \
			CC="${prefix}gcc" AR="${prefix}ar" OBJCOPY="${prefix}objcopy" CFLAGS="$flags${3:+ -I$3/usr/include -I$3/usr/include/$2}" \
			LDFLAGS="-Wl,-z,relro,-z,now -s${3:+ -L$3/usr/lib/$2}" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
	done
	find "$all/usr/share/man" -type f -exec gzip -9n {} +
	find "$all" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# own moves what a list names from $all to a package's own tree, with its documents.
own() { # PACKAGE TRIPLET
	tree=$work/tree
	rm -rf "$tree"
	doc=$tree/usr/share/doc/$1
	mkdir -p "$doc"
	sed "s,LIBDIR,usr/lib/$2," "packaging/nfpm/$1.install" | while read -r pattern; do
		# shellcheck disable=SC2086 # a pattern
		(cd "$all" && for path in $pattern; do
			[ -e "$path" ] || [ -L "$path" ] || { echo "$1.install: nothing is installed as $path" >&2 && exit 1; }
			mkdir -p "$tree/$(dirname "$path")"
			mv "$path" "$tree/$path"
		done)
	done
	cp packaging/copyright "$doc/copyright"
	sed "s/^scon (/$1 (/" "$work/changelog" | gzip -9nc >"$doc/changelog.Debian.gz"
	if [ -e "packaging/lintian/$1" ]; then
		install -D -m 644 "packaging/lintian/$1" "$tree/usr/share/lintian/overrides/$1"
	fi
	if [ "$1" = scon ]; then
		scripts/package-docs.sh "$doc"
	fi
	find "$tree" -type d -empty -delete
	find "$tree" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
	find "$tree" -type f ! -path '*/bin/*' -exec chmod 644 {} +
}

# scripts writes a package's own form of packaging/scripts.
scripts() { # PACKAGE
	rm -rf "$work/scripts" && mkdir "$work/scripts"
	down=: purge=: gone=:
	# Services may run from an image now, with the same directories.
	idle='do [ ! -e "$lock" ] || flock --nonblock "$lock" true || exit 0; done'
	case $1 in
	scon) down='scon down || true' gone="{ for lock in /run/scon/lock /run/scon/*/lock; $idle; rm -rf /run/scon; }" purge=$gone ;;
	# pin.json beside these is what scon pin --undo needs.
	scon-startup) purge="for lock in /run/scon/startup/lock; $idle; rm -rf /var/lib/scon/docker /var/lib/scon/tuned.json; rmdir /var/lib/scon 2>/dev/null || true" ;;
	esac
	for script in packaging/scripts/*; do
		sed "s,UNIT,$1,; s,^DOWN$,$down,; s,^PURGE$,$purge,; s,GONE$,$gone," "$script" | grep -vx : >"$work/scripts/${script##*/}"
	done
}

# packages are those of packaging/nfpm. scon comes last: it has all manual pages that
# are no other package's.
packages="libsconpipe0 libsconpipe-dev scon-startup scon-pipe scon-lab scon"

say TOOLS "nfpm, cyclonedx-gomod"
(cd packaging/tools && go build -o "$work/" github.com/goreleaser/nfpm/v2/cmd/nfpm github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod)

cp packaging/scon.yaml "$work"
scripts/debian-changelog.sh "$VERSION-1" <CHANGELOG.md >"$work/changelog"
rm -f "$out"/*.deb "$out"/*.rpm "$out"/*.tar.gz "$out"/*.cdx.json "$out/SHA256SUMS"
for arch in amd64 arm64; do
	case $arch in
	amd64) triplet=x86_64-linux-gnu libraries= ;;
	arm64) triplet=aarch64-linux-gnu && libraries=$(go run -C test ./bed/vm/unpacked $arch openssl libssl-dev libssl3 musl-dev) ;;
	esac
	say BUILD "$VERSION $arch"
	stage $arch $triplet "$libraries"

	static=$work/$arch/static
	top=$static/scon-$VERSION-linux-$arch
	mkdir -p "$top"
	(cd "$all/usr" && cp -a --parents bin/scon bin/scon-lab bin/scon-cni bin/scon-oci lib/systemd share "$top")
	rm -r "$top/share/man/man3" "$top"/share/man/man8/scon-pipe-[aclc]*.8.gz "$top/lib/systemd/system/scon-pipe.service"
	sed -i 's,^ExecStart=/usr/,&local/,' "$top"/lib/systemd/system/*.service
	mkdir -p "$top/share/doc/scon"
	scripts/package-docs.sh "$top/share/doc/scon"
	cp LICENSE CHANGELOG.md packaging/scon.yaml "$top/share/doc/scon"
	archive "$static" "$out/scon-$VERSION-linux-$arch.tar.gz"

	rm "$all/etc/scon/scon.yaml"
	for package in $packages; do
		own "$package" $triplet
		say PACKAGE "$package"
		scripts "$package"
		for format in deb rpm; do
			cat packaging/nfpm/common.yaml "packaging/nfpm/$package.yaml" >"$work/nfpm.yaml"
			[ $format = deb ] || echo 'license: GPL-2.0-only' >>"$work/nfpm.yaml" # Debian's is in copyright
			(cd "$work" && ARCH=$arch ./nfpm package --config nfpm.yaml --packager $format --target "$out/" >log 2>&1) ||
				{ cat "$work/log" >&2 && exit 1; }
		done
	done
	left=$(find "$all" ! -type d)
	[ -z "$left" ] || { echo "in no package: $left" >&2 && exit 1; }
done

say SBOM CycloneDX
for program in scon scon-lab; do
	"$work/cyclonedx-gomod" bin -json -licenses -std -noserial -notimestamp -version "$VERSION" \
		-output "$out/$program-$VERSION.cdx.json" "$work/amd64/bin/$program" 2>"$work/log" || { cat "$work/log" >&2 && exit 1; }
	# The modules of this repository are dependencies by their folders.
	sed -E -i "s,\.\./(test)?([@\"]),github.com/scon-project/scon/\1\2,; s,scon/([@\"]),scon\1,; s,\(devel\),$VERSION," "$out/$program-$VERSION.cdx.json"
done
(cd "$out" && sha256sum -- *.deb *.rpm *.tar.gz *.cdx.json >SHA256SUMS)
say WROTE "$out, $(find "$out" -type f | wc -l) files"
