#!/bin/sh
# libuv adds sockets to its epoll set by an io_uring, also where UV_USE_IO_URING=0 says no.
#
# Seen with uvloop 0.23.0 (libuv 1.52.1) and Linux 6.18: an event loop makes one io_uring, and
# batches its changes of the epoll set in it (IORING_OP_EPOLL_CTL). A connected socket from which
# the loop then reads has no epoll_ctl(2). The variable UV_USE_IO_URING makes no difference to
# that. With uvloop 0.21.0 it did: 0 left no io_uring.
#
# What it taught: who interposes epoll_ctl(2), or traces it, does not know what a set has. "scon
# run" keeps the connections of a program with an io_uring on TCP (libsconpipe/run/process.c; case
# uring of test/posix).
#
# Needs Python 3 with venv, strace, and a kernel with io_uring. Exit status 1: libuv behaves
# otherwise.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv env
env/bin/pip install -q uvloop==0.23.0 2>/dev/null
cat >echo.py <<'END'
import asyncio, uvloop

async def echo(reader, writer):
    writer.write(await reader.read(100))
    writer.close()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    print(writer.get_extra_info("socket").fileno())

uvloop.run(main())
END
for use in 1 0; do
	fd=$(UV_USE_IO_URING=$use strace -f -qq -e trace=epoll_ctl,io_uring_setup -o "trace$use" env/bin/python echo.py)
	echo "UV_USE_IO_URING=$use: $(grep -c 'io_uring_setup(' "trace$use") io_uring," \
		"$(grep -c "EPOLL_CTL_ADD, $fd," "trace$use" || true) epoll_ctl add the client's socket"
done | tee out
[ "$(cat out)" = "UV_USE_IO_URING=1: 1 io_uring, 0 epoll_ctl add the client's socket
UV_USE_IO_URING=0: 1 io_uring, 0 epoll_ctl add the client's socket" ]
