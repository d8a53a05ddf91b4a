#!/bin/bash
# Makes a release of the checked out commit: runs every suite whole, here and in every
# guest, writes which kernel passed what into docs/kernels.md, commits that, tags it, and
# makes packages, image and chart of the tag in dist/. Takes most of a day. What has passed
# or been done on this commit is not done again when the command is run again.
#
# Before: the file VERSION has the version, CHANGELOG.md a section "## [VERSION] - YYYY-MM-DD",
#         packaging/helm/scon/Chart.yaml the version twice, committed.
# After:  git push --follow-tags; upload dist/, push the image.
#
# Usage: scripts/release.sh VERSION      such as 1.2.0
set -euo pipefail
cd "$(dirname "$0")/.."

# The sources may be a user's: what belongs to them stays the user's, as do logs and dist/.
owner() { scripts/as-owner.sh "$@"; }
git() { owner git "$@"; }
fail() { echo "release: $*" >&2 && exit 1; }

[ $# = 1 ] || fail "takes the version, as in: scripts/release.sh 1.2.0"
version=$1
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "the version is \"$version\": want three numbers, as in 1.2.0"
[ "$(id -u)" = 0 ] || fail "the suites make network namespaces: run it with sudo"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed: $(git status --porcelain | head -3 | tr '\n' ' ')"
git var GIT_COMMITTER_IDENT >/dev/null 2>&1 || fail "git does not know who makes the release: git config --global user.name NAME, user.email ADDRESS"
tag=$(git rev-parse --quiet --verify "refs/tags/v$version^{commit}" || true)
[ -z "$tag" ] || [ "$tag" = "$(git rev-parse HEAD)" ] || fail "the tag v$version exists, at $(git rev-parse --short "$tag")"
grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
	fail "CHANGELOG.md has no section \"## [$version] - $(date --utc +%Y-%m-%d)\": rename \"## [Unreleased]\" and commit it"
[ "$(cat VERSION)" = "$version" ] || fail "the file VERSION has $(cat VERSION), not $version: change it and commit it"
for key in 'version: ' 'appVersion: "'; do
	grep -q "^$key${version//./\\.}\"\?$" packaging/helm/scon/Chart.yaml ||
		fail "packaging/helm/scon/Chart.yaml has another ${key%%:*} than $version: change it and commit it"
done

suites=(test test-hostile test-fresh test-packages test-k8s-full test-kernels test-long)
results="docs: name what each kernel passed for $version"
tested=HEAD
[ "$(git log -1 --format=%s)" != "$results" ] || tested=HEAD~
logs=dist/release-$(git rev-parse --short $tested)
owner mkdir -p "$logs"
begun=$SECONDS
for i in "${!suites[@]}"; do
	suite=${suites[i]}
	[ ! -e "$logs/$suite.passed" ] || continue
	echo "[$((i + 1))/${#suites[@]}] make $suite, $(((SECONDS - begun) / 60)) minutes so far; log: $logs/$suite.log"
	owner touch "$logs/$suite.log"
	make "$suite" >"$logs/$suite.log" 2>&1 || fail "make $suite failed: $(tail -3 "$logs/$suite.log")"
	owner touch "$logs/$suite.passed"
done

owner scripts/kernels-table.sh "$logs/test-kernels.log" docs/kernels.md "SCON $version, commit $(git rev-parse --short $tested), by \`scripts/release.sh\`:"
if ! git diff --quiet -- docs/kernels.md; then
	git commit --quiet --message "$results" -- docs/kernels.md
fi
[ -n "$tag" ] || git tag --annotate --message "SCON $version" "v$version"
make packages image
owner go run -C test/helm/tools helm.sh/helm/v4/cmd/helm package "$PWD/packaging/helm/scon" --destination "$PWD/dist"
owner sh -euc 'cd dist && sha256sum -- *.deb *.rpm *.tar.gz *.tgz *-image.tar *.cdx.json >SHA256SUMS'
echo "released v$version: git push --follow-tags, upload dist/, push the image"
