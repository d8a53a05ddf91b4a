#!/bin/sh
# compare-bpf.sh OLD.o NEW.o: fails unless two BPF objects have the same programs,
# maps and data: the bytes of every loaded section, the symbols in them, and the
# relocations by the names of their symbols. Debug information may differ. zcat unpacks
# objects that pack-bpf.sh has compressed.
# Shows that a change moves or renames code and does nothing else.
set -eu

dump() {
	llvm-readelf -S --wide "$1" | sed -n 's/^ *\[ *[0-9]*\] \([^ ]*\) *PROGBITS.*/\1/p' |
		grep -v '^\.BTF\|^\.debug' | while read -r section; do
		llvm-objcopy --dump-section="$section=$bytes" "$1" /dev/null
		echo "section $section $(sha256sum <"$bytes")"
	done
	llvm-readelf -s --wide "$1" | awk '$5 == "GLOBAL" { print "symbol", $2, $3, $4, $8 }' | sort
	llvm-readelf -r --wide "$1" | awk '
		/^Relocation section/ { section = $3; keep = section !~ /debug|BTF/ }
		keep && / R_BPF/ { print "relocation", section, $1, $3, $5 }'
}

dir=$(mktemp -d)
bytes=$dir/bytes
trap 'rm -r "$dir"' EXIT
dump "$1" >"$dir/old"
dump "$2" >"$dir/new"
diff "$dir/old" "$dir/new"
echo "the same: $(cut -d ' ' -f 1 "$dir/new" | sort | uniq -c | tr -s ' \n' ' ')"
