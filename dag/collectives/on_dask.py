"""Ranks on the workers of a Dask cluster: each worker starts its ranks as processes of their own, which call the launcher.

So a rank that dies takes no worker with it, and ranks do not share an interpreter with Dask.  Their memory does not count
towards the workers' limits.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ..errors import BadCollective
from .overseer import Crew
from .rendezvous import Door

CONNECT_S = 10
_START = (
    "import sys; address, rank, size = sys.argv[1:]; from dag.collectives.rank import die_with_parent; "
    "from dag.collectives.joining import join; die_with_parent(); join(address, int(rank), int(size))"
)


@contextmanager
def start_on_workers(crew: Crew, scheduler: str, token: bytes) -> Iterator[None]:
    """Have the workers of a cluster start all ranks, neighbours on one worker; they are ended with the run.

    Raises:
        BadCollective: the cluster cannot be reached, has no worker, or its workers lack this package.
    """
    from distributed import Client

    try:
        client = Client(scheduler, set_as_default=False, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise BadCollective(f"there is no Dask scheduler at {scheduler}: {error}") from error
    with client:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise BadCollective(f"the Dask cluster at {scheduler} has no workers")
        with closing(Door(_own_host(scheduler), token, crew.enter)) as door:
            futures: list[Any] = []
            try:
                futures = [
                    client.submit(
                        run_rank, door.address, token, rank, crew.ranks,
                        workers=[workers[rank * len(workers) // crew.ranks]], allow_other_workers=False, pure=False, retries=0,
                    )
                    for rank in range(crew.ranks)
                ]  # fmt: skip
                for rank, future in enumerate(futures):
                    future.add_done_callback(partial(_tell_if_failed, crew, rank))
                yield
            finally:
                crew.close()
                client.cancel(futures, force=True)


def _tell_if_failed(crew: Crew, rank: int, future: Any) -> None:
    if future.status == "error":
        error = future.exception()
        crew.unstarted(rank, f"could not be started by its Dask worker: {type(error).__name__}: {error}")
    elif future.status == "finished" and future.result():
        crew.unstarted(rank, f"ended with exit code {future.result()} on its Dask worker")


def run_rank(address: str, token: bytes, rank: int, size: int) -> int:
    """Run a rank in a process of its own, on a worker; returns its exit code."""
    environment = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "DAG_TOKEN": token.hex(),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    command = [sys.executable, "-c", _START, address, str(rank), str(size)]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


def _own_host(scheduler: str) -> str:
    """Return the address of this machine from which it reaches the scheduler; nothing is sent."""
    host = urlsplit(scheduler).hostname or "127.0.0.1"
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
    return found
