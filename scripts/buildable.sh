#!/bin/sh
# Prints the targets of "make build" that this machine can build, and names the others on
# stderr.
set -eu
CC=${CC:-cc}
builds() { # FLAG...
	echo 'int main(void) { return 0; }' | $CC "$@" -x c -o /dev/null - 2>/dev/null
}

echo scon lab man
if builds; then
	echo libsconpipe examples
else
	echo "left out: libsconpipe and the pipe's examples, since there is no C compiler for them (gcc, libc6-dev)" >&2
fi
if builds -static; then
	echo startup
else
	echo "left out: scon-cni and scon-oci, since no static C program can be built (gcc, libc6-dev)" >&2
fi
if builds && ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
	echo cuda
fi
