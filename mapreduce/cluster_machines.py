"""The machines of a Dask cluster: can they run our workers, and do they see the files of this one?

Does not: start anything there.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from .cluster_loop import look_at
from .errors import BadJob, WorkerFailed

CONNECT_S = 10
_ANSWER_S = 20.0


class Machines:
    """What is known of the Dask workers behind ``client``; ``near`` are those that see the files of this machine.

    ``scratch`` is a folder of this machine alone, for a file that tells who sees it.
    """

    def __init__(self, client: Any, scheduler: str, scratch: str) -> None:
        self.scheduler = scheduler
        self.near: set[str] = set()
        self._client = client
        self._met: dict[str, bool] = {}  # whether a Dask worker can do our work
        self._needed: list[str] = []  # URLs that every worker must see
        self._mark = os.path.join(scratch, f"seen-{secrets.token_hex(8)}")
        with open(self._mark, "xb"):
            pass

    def slots(self) -> dict[str, int]:
        """Return how many slots each Dask worker has."""
        try:
            return dict(self._client.sync(self._client.nthreads, callback_timeout=_ANSWER_S))
        except Exception:  # the scheduler is gone, in one of the many words that distributed has for that
            return {}

    def meet(self, addresses: list[str]) -> None:
        """Find out whether Dask workers can run our processes, and whether they see the files of this machine.

        Raises:
            WorkerFailed: a worker has another version of Python or of this package.
        """
        here = platform.python_version_tuple()[:2]
        for address, its in self.ask(platform.python_version_tuple, workers=addresses).items():
            if tuple(its[:2]) != here:
                raise WorkerFailed(
                    f"Dask worker {address} has Python {'.'.join(its[:2])}, this is {'.'.join(here)}; functions "
                    "travel between like versions only"
                )
        wanted = metadata.version("mrdag")
        found = self.ask(metadata.version, "mrdag", workers=addresses, on_error="return")
        for address, its in found.items():
            if isinstance(its, BaseException):
                raise WorkerFailed(
                    f"Dask worker {address} cannot import mrdag; install version {wanted} there"
                )
            if its != wanted:
                raise WorkerFailed(
                    f"Dask worker {address} has mrdag {its}, this is {wanted}; install that there"
                )
        mine = look_at([self._mark])
        for address, its in self.ask(look_at, [self._mark], workers=addresses).items():
            self._met[address] = True
            if its == mine:
                self.near.add(address)

    def is_fit(self, address: str) -> bool:
        """Tell whether a Dask worker, perhaps one that came later, can do our work."""
        if address not in self._met:
            try:
                self.meet([address])
                self.check_see(self._needed)
            except Exception:  # it is gone again, or has other versions or files: the work is done without it
                self._met[address] = False
        return self._met[address]

    def check_see(self, urls: Sequence[str]) -> None:
        """Refuse files that a worker on another machine has no access to.

        A local path may lie on a filesystem that all machines share: then they see the same file there.

        Raises:
            BadJob: a local path is another one there, or not there, or a chunk store is only here.
        """
        self._needed = list(urls)
        far = [
            address for address in self.slots() if address not in self.near and self._met.get(address, True)
        ]
        if not far:
            return
        paths: dict[str, str] = {}
        for url in urls:
            protocol, _, path = url.rpartition("://")
            if protocol == "gfs":
                raise BadJob(f"{url} is a chunk store on this machine, {_elsewhere(far[0])}")
            if protocol in ("", "file", "local"):
                paths[_existing(os.path.abspath(path))] = url
        for last in (False, False, True):  # somebody else may be writing into a folder just now
            here = look_at(list(paths))
            for address, there in self.ask(look_at, list(paths), workers=far).items():
                other = [
                    url for url, mine, its in zip(paths.values(), here, there, strict=True) if mine != its
                ]
                if other and last:
                    raise BadJob(f"{other[0]} is a file of this machine, {_elsewhere(address)}")
                if other:
                    break
            else:
                return

    def ask(self, function: Callable[..., Any], *given: Any, **settings: Any) -> dict[str, Any]:
        """Return what a function gives on each Dask worker; unlike ``Client.run`` it waits no longer than ``_ANSWER_S``."""
        run = self._client.run
        try:
            found: dict[str, Any] = self._client.sync(
                run, function, *given, callback_timeout=_ANSWER_S, **settings
            )
        except TimeoutError:
            raise WorkerFailed(
                f"a worker of the Dask cluster at {self.scheduler} did not answer in {_ANSWER_S:.0f} s"
            ) from None
        return found


def connect(scheduler: str) -> Any:
    """Return a client of the Dask scheduler at an address.

    Raises:
        WorkerFailed: nobody answers there.
    """
    from distributed import Client

    try:
        return Client(scheduler, set_as_default=False, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise WorkerFailed(f"no Dask scheduler answers at {scheduler}: {error}") from None


def _existing(path: str) -> str:
    """Return the path, or of what is still to be made the folder that it will be in; the fixed part of a pattern."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _elsewhere(address: str) -> str:
    return (
        f"and Dask worker {address} runs on another one (or in a container, or as a user without access); "
        "use a filesystem that all of them see, such as s3://"
    )
