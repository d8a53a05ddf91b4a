#!/bin/sh
# Checks that the C library's files include downwards only: a file may include the headers
# of its own layer and of those above it in its folder's list. A header of a layer may
# include only those above, and a header of a folder beneath. Functions are declared in
# their layer's header, so calls go downwards, too; what goes upwards is a function that a
# layer below was given.
set -eu
cd "$(dirname "$0")/../libsconpipe"

# check FOLDER BELOW: the layers of a folder come from stdin. The folder BELOW is beneath it.
check() {
	(cd "$1" && awk -v folder="$1" -v below="../$2/" '
	NF { n++; for (i = 1; i <= NF; i++) layer[$i] = n }
	END {
		while (("ls" | getline file) > 0) {
			if (!(file in layer)) {
				print folder "/" file ": has no layer in scripts/check-layers.sh"; bad = 1
				continue
			}
			while ((getline line < file) > 0) {
				if (line !~ /^#include "/) continue
				split(line, field, "\"")
				if (index(field[2], below) == 1) continue
				most = layer[file] - (file ~ /\.h$/)
				if (!(field[2] in layer) || layer[field[2]] > most) {
					print folder "/" file ": may not include " field[2]; bad = 1
				}
			}
		}
		exit bad
	}')
}

failed=0

# Layer: header, then files. The first four are also of the broker and its programs; api.c
# has the public calls.
check src include <<'LAYERS' || failed=1
page.h
list.h
entry.h
wire.h
cpu.h
clock.h         clock.c
ring.h          ring.c
trust.h         trust.c
session.h       session.c
tcp.h           tcp.c
pool.h          pool.c
memory.h        memory.c
sock.h
table.h         table.c
conn.h          conn.c
bpf.h           bpf.c
unix.h          unix.c
loan.h          loan.c
send.h          send.c
recv.h          recv.c
listed.h        listed.c
epoll.h         epoll.c
options.h       options.c
close.h         close.c
fork.h          fork.c
-               api.c
LAYERS

# All files of the last layer interpose the C library's calls.
check run src <<'LAYERS' || failed=1
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
pooled.h        pooled.c
sets.h          sets.c members.c ready.c
attach.h        attach.c
image.h         image.c
pass.h          pass.c
descriptors.h   descriptors.c
streams.h       streams.c
-               epoll.c exec.c io.c poll.c sockets.c splice.c process.c
LAYERS

exit $failed
