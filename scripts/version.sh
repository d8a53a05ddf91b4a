#!/bin/sh
# Prints the version of these sources: that of the file VERSION, and behind the release's tag how
# many commits behind it. All of them sort for dpkg and rpm.
#
#	0.1.0   0.1.0+3.4b83c70   0.1.0+dirty
set -eu
cd "$(dirname "$0")/.."

version=$(cat VERSION)
git rev-parse --quiet --verify HEAD >/dev/null 2>&1 || { echo "$version" && exit; }
suffix=
git diff --quiet HEAD -- || suffix=dirty
if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
	behind=$(git rev-list --count "v$version..HEAD")
	[ "$behind" = 0 ] || suffix=$behind.$(git rev-parse --short=7 HEAD)${suffix:+.$suffix}
fi
echo "$version${suffix:++$suffix}"
