#!/bin/bash
# Makes a release of the checked out commit: runs every suite whole, here and in every
# guest, writes which kernel passed what into docs/kernels.md, commits that, tags it, and
# makes the packages of the tag in dist/. Takes most of a day. A suite that has passed on
# this commit is not run again when the command is.
#
# Before: CHANGELOG.md has a section "## [VERSION] - YYYY-MM-DD", committed.
# After:  git push --follow-tags; upload dist/.
#
# Usage: scripts/release.sh VERSION      such as 1.2.0
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "release: $*" >&2 && exit 1; }

[ $# = 1 ] || fail "takes the version, as in: scripts/release.sh 1.2.0"
version=$1
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "the version is \"$version\": want three numbers, as in 1.2.0"
[ "$(id -u)" = 0 ] || fail "the suites make network namespaces: run it with sudo"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed: $(git status --porcelain | head -3 | tr '\n' ' ')"
! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null || fail "the tag v$version exists"
grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
	fail "CHANGELOG.md has no section \"## [$version] - $(date --utc +%Y-%m-%d)\": rename \"## [Unreleased]\" and commit it"

suites=(test test-hostile test-packages test-k8s-full test-kernels test-long)
logs=dist/release-$(git rev-parse --short HEAD)
mkdir -p "$logs"
begun=$SECONDS
for i in "${!suites[@]}"; do
	suite=${suites[i]}
	[ ! -e "$logs/$suite.passed" ] || continue
	echo "[$((i + 1))/${#suites[@]}] make $suite, $(((SECONDS - begun) / 60)) minutes so far; log: $logs/$suite.log"
	make "$suite" >"$logs/$suite.log" 2>&1 || fail "make $suite failed: $(tail -3 "$logs/$suite.log")"
	touch "$logs/$suite.passed"
done

scripts/kernels-table.sh "$logs/test-kernels.log" docs/kernels.md
if ! git diff --quiet -- docs/kernels.md; then
	git commit --quiet --message "docs: name what each kernel passed for $version" -- docs/kernels.md
fi
git tag --annotate --message "SCON $version" "v$version"
make packages
echo "released v$version: git push --follow-tags, and upload dist/"
