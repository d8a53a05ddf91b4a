#!/bin/sh
# Checks that libsconpipe/run includes downwards only: a file may include the headers of
# its own layer and of those above it in this list. A header of a layer may include only
# those above.
set -eu
cd "$(dirname "$0")/../libsconpipe/run"

# Layer: header, then files. All files of "calls" interpose the C library's calls.
layers='
args.h
libc.h
real.h          real.c
native.h
socket.h        socket.c
files.h         files.c
pace.h          pace.c
arena.h         arena.c
channel.h       channel.c
inbox.h         inbox.c
wait.h          wait.c
proof.h         proof.c
stream.h        stream.c recv.c send.c
table.h         table.c
sets.h          sets.c members.c ready.c
attach.h        attach.c
image.h         image.c
pass.h          pass.c
descriptors.h   descriptors.c
streams.h       streams.c
-               epoll.c exec.c io.c poll.c sockets.c splice.c
-               process.c
'

printf '%s\n' "$layers" | awk '
	NF { n++; for (i = 1; i <= NF; i++) layer[$i] = n }
	END {
		while (("ls" | getline file) > 0) {
			if (!(file in layer)) {
				print file ": has no layer in scripts/check-run-layers.sh"; bad = 1
				continue
			}
			while ((getline line < file) > 0) {
				if (line !~ /^#include "/) continue
				split(line, field, "\"")
				if (field[2] ~ /^\.\.\/src\//) continue
				most = layer[file] - (file ~ /\.h$/)
				if (!(field[2] in layer) || layer[field[2]] > most) {
					print file ": may not include " field[2]; bad = 1
				}
			}
		}
		exit bad
	}'
