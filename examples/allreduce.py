#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A process group for Python, as in collective libraries of machine learning such as
Gloo: a binding of ring.c.

    allreduce.py RANK ADDRESS...     the addresses of all ranks (transport.h)

It sums vectors of a million floats and checks the result.
"""
import array
import ctypes
import os
import sys


class Group:
    """The group of all ranks; this process is one."""

    def __init__(self, rank, addresses, library="libscon-pipe-ring.so"):
        self.rank, self.size = rank, len(addresses)
        self._ring = ctypes.CDLL(library)
        self._ring.ring_open.restype = ctypes.c_void_p
        following = addresses[(rank + 1) % self.size]
        self._handle = ctypes.c_void_p(
            self._ring.ring_open(rank, self.size, addresses[rank].encode(), following.encode()))

    def barrier(self):
        """Returns when all ranks have called it."""
        self._ring.ring_barrier(self._handle)

    def allreduce(self, vector, message=1 << 20):
        """Replaces the vector by the sum of all ranks' vectors: a writable buffer of
        floats, such as array.array("f") or a tensor's numpy()."""
        view = memoryview(vector).cast("B")
        floats = (ctypes.c_float * (len(view) // ctypes.sizeof(ctypes.c_float))).from_buffer(view)
        self._ring.ring_allreduce(self._handle, floats, ctypes.c_size_t(len(floats)), ctypes.c_size_t(message))

    def close(self):
        self._ring.ring_close(self._handle)


def main():
    if len(sys.argv) < 4:
        sys.exit("usage: allreduce.py RANK ADDRESS ADDRESS...")
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bin/libscon-pipe-ring.so")
    group = Group(int(sys.argv[1]), sys.argv[2:], beside)
    vector = array.array("f", [group.rank + 1]) * 1_000_001
    vector[7] = 100.0
    group.allreduce(vector)
    group.barrier()
    group.close()
    total = sum(range(1, group.size + 1))
    if vector[0] != total or vector[-1] != total or vector[7] != 100 * group.size or vector.count(total) != len(vector) - 1:
        sys.exit(f"the sums are {vector[:8]}...")
    print("right")


if __name__ == "__main__":
    main()
