#!/bin/sh
# size.sh [SCON]: prints how large this project is, in the table that ARCHITECTURE.md quotes.
# Lines are all lines of tracked Go and C files. Those of tests (*_test.go, folders test/ and
# testdata/) and generated ones count apart. SCON is the program, bin/scon.
set -eu
cd "$(dirname "$0")/.."
scon=${1:-bin/scon}

# files PATHSPEC...: tracked sources of Go and C
files() { git ls-files -- "$@" | grep -E '\.(go|c|h)$'; }
tests='_test\.go$|(^|/)(test|testdata)/'
generated() { xargs grep -lE '^(// Code generated|/\* Code generated)' /dev/null || true; }
lines() { xargs cat | wc -l; }

all=$(mktemp) && made=$(mktemp) && trap 'rm -f "$all" "$made"' EXIT
files . ':!lab' | grep -vE "$tests" >"$all"
generated <"$all" >"$made"
product=$(grep -vxFf "$made" "$all" | lines)
files lab >"$all"
lab=$(grep -vE "$tests" "$all" | grep -vxFf "$(generated <"$all" >"$made" && echo "$made")" | lines)
requires() { awk '/^require \(/ { on = 1; next } /^\)/ { on = 0 } (on || /^require [^(]/) && !/\/\/ indirect/ && NF { n++ } END { print n + 0 }' "$1"; }
words() { git ls-files -- "$@" | xargs cat | wc -w; }

cat <<END
| what | how much |
| --- | --- |
| product: lines of Go and C, without tests and generated files | $product |
| laboratory: the same | $lab |
| tests and their bed: lines of Go and C | $(files . | grep -E "$tests" | lines) |
| modules that the product's go.mod requires directly | $(requires go.mod) |
| words of Markdown for users (README.md, docs/) | $(words README.md 'docs/*.md') |
| words of the laboratory (lab/docs/) | $(words 'lab/docs/*.md') |
| words of Markdown in all | $(words '*.md') |
| bytes of scon, amd64 | $(stat -c %s "$scon" 2>/dev/null || echo "not built: make scon") |
END
