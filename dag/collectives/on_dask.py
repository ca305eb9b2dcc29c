"""Ranks on the workers of a Dask cluster: each worker starts its ranks as processes of their own, which call the launcher.

So a rank that dies takes no worker with it, and ranks do not share an interpreter with Dask.  Their memory does not count
towards the workers' limits.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ..errors import BadCollective
from .overseer import Crew
from .rendezvous import Door

CONNECT_S = 10
_START = (
    "import sys; address, rank, size = sys.argv[1:]; from dag.collectives.rank import die_with_parent; "
    "from dag.collectives.joining import join; die_with_parent(); sys.exit(not join(address, int(rank), int(size)))"
)


@contextmanager
def start_on_workers(crew: Crew, scheduler: str, token: bytes) -> Iterator[None]:
    """Have the workers of a cluster start all ranks, neighbours on one worker; they are ended with the run.

    Raises:
        BadCollective: the cluster cannot be reached or has no worker.
    """
    from distributed import Client

    if not _has_port(scheduler):
        # The client would try to close, for a long while, what it could not open.
        raise BadCollective(f"a Dask scheduler's address is like tcp://10.0.0.1:8786, got {scheduler!r}")
    try:
        client = Client(scheduler, set_as_default=False, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise BadCollective(f"there is no Dask scheduler at {scheduler}: {error}") from error
    with client:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise BadCollective(f"the Dask cluster at {scheduler} has no workers")
        with closing(Door(_own_host(scheduler), token, crew.enter)) as door:
            threads = []
            for rank in range(crew.ranks):
                worker = workers[rank * len(workers) // crew.ranks]
                given = (client, worker, crew, (door.address, token, rank, crew.ranks))
                threads.append(
                    threading.Thread(target=_look_after, args=given, daemon=True, name=f"rank {rank}")
                )
            try:
                for thread in threads:
                    thread.start()
                yield
            finally:
                crew.close()  # without a line a rank ends itself
                for thread in threads:
                    thread.join()


async def run_rank(address: str, token: bytes, rank: int, size: int) -> int:
    """Run a rank in a process of its own and return its exit code; in the event loop of a worker, whose threads stay free."""
    environment = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "DAG_TOKEN": token.hex(),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _START, address, str(rank), str(size), env=environment, stdin=asyncio.subprocess.DEVNULL
    )  # fmt: skip
    return await process.wait()


def _look_after(client: Any, worker: str, crew: Crew, place: tuple[str, bytes, int, int]) -> None:
    """Have a worker run a rank and tell the launcher if it never came."""
    rank = place[2]
    try:
        code = client.run(run_rank, *place, workers=[worker])[worker]
    except Exception as error:  # the worker lacks this package, or is gone
        crew.unstarted(rank, f"could not be started by its Dask worker: {type(error).__name__}: {error}")
        return
    if code:
        crew.unstarted(rank, f"ended with exit code {code} on its Dask worker")


def _split(scheduler: str) -> SplitResult:
    # Dask takes an address without a scheme for tcp://.
    return urlsplit(scheduler if "://" in scheduler else f"tcp://{scheduler}")


def _has_port(scheduler: str) -> bool:
    """Return whether an address has a host and a port, which those inside a process do without."""
    parts = _split(scheduler)
    try:
        return parts.hostname is not None and (parts.port is not None or parts.scheme == "inproc")
    except ValueError:  # the port is no number
        return False


def _own_host(scheduler: str) -> str:
    """Return the address of this machine from which it reaches the scheduler; nothing is sent."""
    host = _split(scheduler).hostname or "127.0.0.1"
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
    return found
