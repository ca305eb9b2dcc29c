"""One rank of a contender in ``allreduce.py``: it does what it is told over a socket, and says how long each call took.

``python allreduce_ranks.py gloo RANK SIZE PORT``, ``mpiexec -n SIZE python allreduce_ranks.py mpi``,
``python allreduce_ranks.py shm|tcp SIZE`` (launches its own ranks).  The socket's path is in ``ALLREDUCE_SOCKET``.  While a
contender is not at work its ranks wait in a read, so that none takes the cores of another.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
#: Reduces an array in place; or waits for all.
Reduce = Callable[[Any], object]
Barrier = Callable[[], object]
Empty = Callable[[int], Any]


def serve(name: str, rank: int, size: int, reduce: Reduce, barrier: Barrier, empty: dict[str, Empty]) -> None:
    """Do what is asked until the socket is closed.

    Args:
        empty: how the contender's arrays are made, by kind; each is made once for each size and used again.
    """
    arrays: dict[tuple[str, int], Any] = {}
    with Client(os.environ["ALLREDUCE_SOCKET"], "AF_UNIX", authkey=b"allreduce") as connection:
        connection.send((name, rank))
        while True:
            try:
                what, *rest = connection.recv()
            except EOFError:
                return
            if what == "reduce":
                kind, nbytes, times = rest
                if (kind, nbytes) not in arrays:
                    arrays[kind, nbytes] = empty[kind](nbytes // 4)
                connection.send(timed(arrays[kind, nbytes], rank, size, reduce, barrier, times))
            elif what == "forget":
                arrays.clear()
                connection.send(None)
            elif what == "triad":
                connection.send(triad(barrier, *rest))
            elif what == "listen":
                listener = socket.create_server(("127.0.0.1", 0))
                connection.send(listener.getsockname()[1])
            elif what == "stream":
                connection.send(stream(connection, listener, barrier, *rest))


def timed(x: Any, rank: int, size: int, reduce: Reduce, barrier: Barrier, times: int) -> list[float]:
    """Return the seconds of each of so many calls; raises RuntimeError if the result is not the sum."""
    x[:] = rank + 1
    seconds = []
    for _ in range(times):
        barrier()
        start = time.perf_counter()
        reduce(x)
        seconds.append(time.perf_counter() - start)
    # Sizes are powers of two, so these are exact.
    wanted = size * (size + 1) / 2 * float(size) ** (times - 1)
    found = {float(x.min()), float(x.max())} if len(x) else {wanted}
    if found != {wanted}:
        raise RuntimeError(f"rank {rank} of {size}: {found} after {times} all-reduces, wanted {wanted}")
    return seconds


def triad(barrier: Barrier, elements: int, passes: int, times: int) -> list[tuple[float, float]]:
    """Return when each run of so many passes ``a = b + c`` began and ended, all ranks at once: two reads and a write."""
    one, two, three = (np.ones(elements, np.float32) for _ in range(3))
    piece = 1 << 16
    spans = []
    for _ in range(times):
        barrier()
        began = time.perf_counter()
        for _ in range(passes):
            for at in range(0, elements, piece):
                np.add(two[at : at + piece], three[at : at + piece], one[at : at + piece])
        spans.append((began, time.perf_counter()))
    return spans


def stream(
    connection: Connection, listener: socket.socket, barrier: Barrier, port: int, nbytes: int, times: int
) -> list[float]:
    """Return the seconds in which ``nbytes`` go to the next rank while as many come from the one before: raw sockets."""
    giving = socket.create_connection(("127.0.0.1", port))
    taking, _ = listener.accept()
    listener.close()
    chunk = 1 << 18
    given, taken = memoryview(bytearray(chunk)), memoryview(bytearray(chunk))
    for each in (giving, taking):
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = []
    with selectors.DefaultSelector() as selector, giving, taking:
        selector.register(giving, selectors.EVENT_WRITE)
        selector.register(taking, selectors.EVENT_READ)
        for _ in range(times):
            barrier()
            start = time.perf_counter()
            left = {giving: nbytes, taking: nbytes}
            while any(left.values()):
                for key, _events in selector.select():
                    if key.fileobj is giving and left[giving]:
                        left[giving] -= giving.send(given[: min(chunk, left[giving])])
                    elif key.fileobj is taking and left[taking]:
                        left[taking] -= taking.recv_into(taken[: min(chunk, left[taking])])
            seconds.append(time.perf_counter() - start)
    return seconds


def numpy_array(elements: int) -> Array:
    """Return an array as callers make them."""
    return np.zeros(elements, np.float32)


def be_gloo(rank: int, size: int, port: int) -> None:
    """Serve torch's gloo, one thread."""
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    serve(
        "gloo", rank, size, distributed.all_reduce, distributed.barrier, {"own": lambda n: torch.zeros(n, dtype=torch.float32)}
    )  # fmt: skip
    distributed.destroy_process_group()


def be_mpi() -> None:
    """Serve mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    serve(
        os.environ["ALLREDUCE_NAME"],
        world.rank,
        world.size,
        lambda x: world.Allreduce(MPI.IN_PLACE, x),
        world.Barrier,
        {"own": numpy_array},
    )


def be_ours(name: str, size: int) -> None:
    """Launch our own ranks."""
    from dag.collectives import Comm, launch

    def rank(comm: Comm) -> None:
        serve(
            name,
            comm.rank,
            comm.size,
            comm.allreduce,
            comm.barrier,
            {"own": numpy_array, "empty": lambda n: comm.empty(n, np.float32)},
        )

    launch(rank, size, transport=name)


if __name__ == "__main__":
    if sys.argv[1] == "gloo":
        be_gloo(*map(int, sys.argv[2:]))
    elif sys.argv[1] == "mpi":
        be_mpi()
    else:
        be_ours(sys.argv[1], int(sys.argv[2]))
