#!/bin/sh
# Checks the subjects of the commits that are not on the main branch yet: "area: what it does",
# at most 72 characters, with a verb in the imperative behind the area. Without a main branch,
# or a repository, nothing is checked.
set -eu
cd "$(dirname "$0")/.."

for main in refs/remotes/origin/main refs/heads/main; do
	git rev-parse --quiet --verify "$main" >/dev/null 2>&1 && break || main=
done
[ -n "$main" ] || exit 0
git log --no-merges --format='%h %s' "$main..HEAD" | awk '
	function bad(why) { print "commit " $1 ": " why ": " subject; failed = 1 }
	{
		subject = substr($0, index($0, " ") + 1)
		verb = $3
		if (length(subject) > 72) bad("the subject has " length(subject) " characters, 72 at most")
		if (subject !~ /^[a-z][a-z0-9.\/-]*: [a-z]/) bad("want \"area: what it does\"")
		else if (verb ~ /^(adds|fixes|makes|uses|removes|allows|keeps|lets|moves|shows|says|takes|tests|writes|reads|gives|[a-z]+(ing|ted|ded|ked|xed|ved|led|ned|sed|red|ped))$/ &&
			verb !~ /^(bring|ring|string|ping|speed|seed|feed|need|embed|shed)$/)
			bad("\"" verb "\" is not in the imperative")
	}
	END { exit failed }' >&2
