#!/bin/sh
# Writes the table of slow test packages into CONTRIBUTING.md, between its lines "<!-- slow -->"
# and "<!-- end of slow -->", from the events of "make test".
#
# Usage: scripts/slow-tests.sh bin/test.json
set -eu
cd "$(dirname "$0")/.."
table=$(mktemp) && trap 'rm -f "$table"' EXIT

# {"Action":"pass","Package":P,"Test":T,"Elapsed":S}: of a package without Test
sed -nE 's/^\{.*"Action":"(pass|fail)".*"Package":"[^"]*\/scon\/([^"]*)"(,"Test":"([^"/]*)")?,"Elapsed":([0-9.]+).*/\2 \5 \4/p' "$1" | awk '
	NF == 2 { all[$1] = $2; next }
	$2 > most[$1] { most[$1] = $2; name[$1] = $3 }
	END { for (p in all) if (all[p] >= 20) printf "%d | `%s` | %d | %s |\n", all[p], p, all[p], p in name ? sprintf("`%s`, %d", name[p], most[p]) : "none" }' |
	sort -rn | sed 's/^[0-9]* //' >"$table"
[ -s "$table" ] || { echo "slow-tests.sh: $1 has no events of packages that take 20 s" >&2 && exit 1; }
sed -i '1i\| package | seconds | its longest test, seconds |\n| --- | --- | --- |' "$table"
sed -i -e '/^<!-- slow -->$/,/^<!-- end of slow -->$/{//!d}' -e "/^<!-- slow -->\$/r $table" CONTRIBUTING.md
