#!/bin/sh
# Prints the version of these sources: a tag's name without "v"; behind a tag, how many
# commits behind it; before the first tag, the commit's day. All of them sort for dpkg
# and rpm, "~" before the version that it precedes.
#
#	1.2.0   1.2.0+3.4b83c70   0~20261123.4b83c70   1.2.0+dirty
set -eu
cd "$(dirname "$0")/.."

git rev-parse --quiet --verify HEAD >/dev/null 2>&1 || { echo unreleased && exit; }
hash=$(git rev-parse --short=7 HEAD)
dirty=
git diff --quiet HEAD -- || dirty=dirty
if tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null); then
	version=${tag#v}
	behind=$(git rev-list --count "$tag..HEAD")
	[ "$behind" = 0 ] && suffix=$dirty || suffix=$behind.$hash${dirty:+.dirty}
	echo "$version${suffix:++$suffix}"
else
	echo "0~$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d).$hash${dirty:++dirty}"
fi
