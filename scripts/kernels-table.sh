#!/bin/sh
# Writes the table "suite x guest", with the times of those that passed, from the log of "make test-kernels" into a document,
# between its lines "<!-- results -->" and "<!-- end of results -->".
#
# Usage: scripts/kernels-table.sh LOG DOCUMENT [LINE]    LINE comes above the table
set -eu
table=$(mktemp)
trap 'rm -f "$table"' EXIT

[ -z "${3-}" ] || printf '%s\n\n' "$3" >"$table"
# The last three tests have only the guest 6.12.
sed -n -e 's/^--- \(PASS\|FAIL\|SKIP\): Test\(SRIOV\|Irqbalance\|Cost\) (\(.*\)\.[0-9]*s)$/\1 \2 6.12 \3/p' \
	-e 's/^ *--- \(PASS\|FAIL\|SKIP\): Test\(Tests\|Express\|Service\)\/\([^ ]*\) (\(.*\)\.[0-9]*s)$/\1 \2 \3 \4/p' "$1" | awk '
	{
		kind = $2
		sub(/^Tests$/, "", kind)
		n = split($3, name, "/")
		suite = kind == "" ? name[2] : tolower(kind)
		if (kind == "" && n != 2 || kind != "" && n != 1) next
		guest = name[1]
		gsub(/_/, " ", guest)
		if (!(guest in row)) { row[guest] = ++rows; guests[rows] = guest }
		if (!(suite in column)) { column[suite] = ++columns; suites[columns] = suite }
		cell[row[guest], column[suite]] = $1 == "PASS" ? ($4 < 90 ? $4 " s" : int(($4 + 30) / 60) " min") : $1 == "FAIL" ? "**failed**" : "skipped"
	}
	END {
		if (!rows) exit 1
		line = "| suite |"; rule = "| --- |"
		for (r = 1; r <= rows; r++) { line = line " " guests[r] " |"; rule = rule " --- |" }
		print line "\n" rule
		for (c = 1; c <= columns; c++) {
			line = "| " suites[c] " |"
			for (r = 1; r <= rows; r++) line = line " " ((r, c) in cell ? cell[r, c] : "-") " |"
			print line
		}
	}' >>"$table" || { echo "kernels-table.sh: $1 has no results of tests in guests" >&2 && exit 1; }
grep -qx '<!-- results -->' "$2" && grep -qx '<!-- end of results -->' "$2" ||
	{ echo "kernels-table.sh: $2 has no lines <!-- results --> and <!-- end of results -->" >&2 && exit 1; }
sed -i -e '/^<!-- results -->$/,/^<!-- end of results -->$/{//!d}' -e "/^<!-- results -->\$/r $table" "$2"
