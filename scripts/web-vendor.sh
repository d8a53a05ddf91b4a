#!/bin/sh
# Fetches the libraries of the live page by npm, in the versions below, and compares them
# with the files in the repository; with --write it replaces these.
set -eu
cd "$(dirname "$0")/../internal/web/page/vendor"
here=$(pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
for package in htm@3.1.1 preact@10.29.8 uplot@1.6.32; do
	npm pack --silent "$package" >file
	mkdir "${package%@*}"
	tar -xzf "$(cat file)" -C "${package%@*}" --strip-components 1
done
mkdir out
cp htm/preact/standalone.module.js out/htm-preact.js
cp uplot/dist/uPlot.iife.min.js out/uplot.js
cp uplot/dist/uPlot.min.css out/uplot.css
for package in htm preact uplot; do
	cp "$package/LICENSE" "out/LICENSE.$package"
done
if [ "${1:-}" = --write ]; then
	cp out/* "$here"
else
	diff -r out "$here" && echo "The page's libraries are those of the packages."
fi
