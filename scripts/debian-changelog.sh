#!/bin/sh
# Turns the changelog on stdin (Keep a Changelog) into Debian's form. What is not released
# yet has the version and the day that are being built.
#
# Usage: SOURCE_DATE_EPOCH=... scripts/debian-changelog.sh VERSION <CHANGELOG.md
set -eu
now=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%d)
awk -v version="$1" -v now="$now" '
	function finish() {
		if (open) {
			("LC_ALL=C date --utc --rfc-email --date=" day) | getline when
			printf "\n -- SCON project <scon@scon-project.example>  %s\n\n", when
		}
	}
	# put prints a line of Markdown in lines of 80 columns at most.
	function put(indent, text,   n, words, line, i) {
		n = split(text, words, " ")
		line = indent words[1]
		for (i = 2; i <= n; i++) {
			if (length(line " " words[i]) > 80) {
				print line
				line = "    " words[i]
			} else {
				line = line " " words[i]
			}
		}
		print line
	}
	/^## \[/ {
		finish()
		open = 1
		name = $2
		gsub(/[][]/, "", name)
		day = $4
		if (name == "Unreleased") {
			name = version
			day = now
		} else {
			name = name "-1"
		}
		printf "scon (%s) unstable; urgency=medium\n", name
		next
	}
	!open || /^$/ || /^\[/ { next }
	/^### / { printf "\n  [ %s ]\n", substr($0, 5); next }
	/^- / { put("  * ", substr($0, 3)); next }
	{ put("    ", $0) }
	END { finish() }
'
