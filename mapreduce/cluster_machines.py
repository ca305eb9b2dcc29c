"""The machines of a Dask cluster: can they run our workers, and do they see the files of this one?

Promises: after it was made, only ``check_see`` waits for a Dask worker; one that does not answer is left out and asked again
later, one of another version is left out for good, and a warning of the log says which and why.  Does not: start anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from .cluster_loop import look_at
from .errors import BadJob, WorkerFailed

CONNECT_S = 10
_ANSWER_S = 20.0
_AGAIN_S = 10.0
_NEVER = float("inf")

_log = logging.getLogger(__name__)


class Machines:
    """What is known of the Dask workers behind ``client``.

    ``near`` are those that see the files of this machine, which a new file in ``scratch``, a folder of this machine, tells;
    ``slots`` has the number of slots of each Dask worker as last heard; ``tell`` is called, from another thread, with news.

    Raises:
        WorkerFailed: the cluster has no worker, or one of another version of Python or of this package, or none answers.
    """

    def __init__(self, client: Any, scheduler: str, scratch: str, tell: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.near: set[str] = set()
        self.slots: Mapping[str, int] = {}
        self._client = client
        self._tell = tell
        self._met: set[str] = set()  # can run our workers
        self._seeing: set[str] = set()  # see what the run needs
        self._needed: Sequence[str] = ()  # URLs that every worker of the run must see
        self._again_at: dict[str, float] = {}  # when to ask again those that are left out
        self._told: dict[str, str] = {}  # why they are
        self._closed = False
        self._looking = False
        self._asking: set[str] = set()
        self._mark = os.path.join(scratch, f"seen-{secrets.token_hex(8)}")
        with open(self._mark, "xb"):
            pass
        self._client.sync(self.look_for_slots)
        if not self.slots:
            raise WorkerFailed(
                f"the Dask scheduler at {scheduler} has no worker; start one with: dask worker {scheduler}"
            )
        self._client.sync(self._judge_all, list(self.slots))
        problems = {address: said for address, said in self._told.items() if address not in self._met}
        for address, problem in problems.items():
            if self._again_at[address] == _NEVER or not self._met:
                raise WorkerFailed(problem)
        for problem in problems.values():
            _log.warning("%s", problem)

    def look(self) -> None:
        """Ask the scheduler for its workers, and those that are new for what they are; the answers come later."""
        if not self._looking:
            self._looking = True
            self._client.loop.add_callback(self._look)

    def is_fit(self, address: str) -> bool:
        """Tell whether a Dask worker is known to be able to do the work of the run."""
        return address in self._met and address in self._seeing

    def are_all_out(self) -> bool:
        """Tell whether every Dask worker is left out for as long as it lives."""
        return bool(self.slots) and all(self._again_at.get(each) == _NEVER for each in self.slots)

    def leave_out(self, address: str, problem: str) -> None:
        """Leave a Dask worker out for as long as it lives."""
        self._met.discard(address)
        self._leave_out(address, problem, _NEVER, say=True)

    def close(self) -> None:
        """Say nothing more of Dask workers that do not answer."""
        self._closed = True

    def check_see(self, urls: Sequence[str]) -> None:
        """Refuse files that a worker on another machine has no access to, for this run and those after it.

        A local path may lie on a filesystem that all machines share: then they see the same file there, by inode, time and
        size; where something is still to be made they see a file that was made for this question (machines of one image
        have the same folders, and a file made in one of them is not in the others).

        Raises:
            BadJob: a local path is another one there, or not there, or a chunk store is only here.
        """
        self._client.sync(self.look_for_slots)
        self._needed = tuple(urls)
        self._seeing = set(self.near)
        self._again_at = {address: at for address, at in self._again_at.items() if at == _NEVER}
        far = [address for address in self._met - self.near if address in self.slots]
        problems = self._client.sync(self._blindness_of_all, far) if far else {}
        for problem in problems.values():
            if isinstance(problem, BadJob):
                raise problem
        for address, problem in problems.items():
            if problem is None:
                self._seeing.add(address)
            else:
                self._leave_out(address, str(problem), _AGAIN_S, say=True)

    def ask(
        self, function: Callable[..., Any], *given: Any, workers: Sequence[str]
    ) -> dict[str, Any | BaseException]:
        """Return what a function gives on each of some Dask workers, or what it raised; waits no longer than ``_ANSWER_S``."""
        found: dict[str, Any | BaseException] = self._client.sync(self._ask_all, workers, function, *given)
        return found

    # --- in the thread of the client ---

    async def _look(self) -> None:
        try:
            await self.look_for_slots()
            now = time.monotonic()
            new = [
                address for address in self.slots
                if not self.is_fit(address) and address not in self._asking
                and self._again_at.get(address, 0.0) <= now
            ]  # fmt: skip
            for address in new:
                self._asking.add(address)
                self._client.loop.add_callback(self._judge_late, address)
        finally:
            self._looking = False
            self._tell()

    async def look_for_slots(self) -> None:
        try:
            self.slots = dict(await asyncio.wait_for(self._client.nthreads(), _ANSWER_S))
        except Exception:  # the scheduler is gone, in one of the many words that distributed has for that
            self.slots = {}

    async def _judge_late(self, address: str) -> None:
        try:
            await self._judge(address, say=True)
        finally:
            self._asking.discard(address)
            self._tell()

    async def _judge_all(self, addresses: Sequence[str]) -> None:
        await asyncio.gather(*(self._judge(address, say=False) for address in addresses))

    async def _judge(self, address: str, *, say: bool) -> None:
        """Find out whether a Dask worker can do the work of the run, and keep the answer."""
        seeing, needed = self._seeing, self._needed
        try:
            if address not in self._met:
                await self._meet(address)
            problem = None
            if address not in self.near:
                with _paths_of(needed) as paths:
                    problem = await self._blindness_of(address, needed, paths)
        except WorkerFailed as error:
            self._leave_out(address, str(error), _NEVER, say=say)
        except Exception as error:  # a time-out, or it is gone again
            self._leave_out(address, self._silence(address, error), _AGAIN_S, say=say)
        else:
            if problem is None:
                seeing.add(address)
                self._told.pop(address, None)
            else:
                self._leave_out(address, str(problem), _AGAIN_S, say=say)

    async def _meet(self, address: str) -> None:
        its, here = await self._ask(address, platform.python_version_tuple), platform.python_version_tuple()
        if tuple(its[:2]) != here[:2]:
            raise WorkerFailed(
                f"Dask worker {address} has Python {'.'.join(its[:2])}, this is {'.'.join(here[:2])}; functions "
                "travel between like versions only"
            )
        wanted = metadata.version("mrdag")
        try:
            version = await self._ask(address, metadata.version, "mrdag")
            seen = await self._ask(address, look_at, [self._mark])
        except ImportError:
            raise WorkerFailed(
                f"Dask worker {address} cannot import mrdag; install version {wanted} there"
            ) from None
        if version != wanted:
            raise WorkerFailed(
                f"Dask worker {address} has mrdag {version}, this is {wanted}; install that there"
            )
        if seen == look_at([self._mark]):
            self.near.add(address)
        self._met.add(address)

    async def _blindness_of_all(self, addresses: Sequence[str]) -> dict[str, BadJob | str | None]:
        async def one(address: str, paths: Mapping[str, str]) -> BadJob | str | None:
            try:
                return await self._blindness_of(address, self._needed, paths)
            except Exception as error:
                return self._silence(address, error)

        with _paths_of(self._needed) as paths:
            found = await asyncio.gather(*(one(address, paths) for address in addresses))
        return dict(zip(addresses, found, strict=True))

    async def _blindness_of(
        self, address: str, urls: Sequence[str], paths: Mapping[str, str]
    ) -> BadJob | None:
        """Return the error for what a Dask worker does not see of what these URLs name: ``paths``, as of ``_paths_of``."""
        for url in urls:
            if url.startswith("gfs://"):
                return BadJob(f"{url} is a chunk store on this machine, {_elsewhere(address)}")
        other: list[str] = []
        for _ in range(3 if paths else 0):  # somebody else may be writing into a folder just now
            here, there = look_at(list(paths)), await self._ask(address, look_at, list(paths))
            other = [url for url, mine, its in zip(paths.values(), here, there, strict=True) if mine != its]
            if not other:
                break
        return BadJob(f"{other[0]} is a file of this machine, {_elsewhere(address)}") if other else None

    async def _ask(self, address: str, function: Callable[..., Any], *given: Any) -> Any:
        found = await asyncio.wait_for(self._client.run(function, *given, workers=[address]), _ANSWER_S)
        return found[address]

    async def _ask_all(self, addresses: Sequence[str], function: Callable[..., Any], *given: Any) -> Any:
        asked = (self._ask(address, function, *given) for address in addresses)
        return dict(zip(addresses, await asyncio.gather(*asked, return_exceptions=True), strict=True))

    # --- words ---

    def _leave_out(self, address: str, problem: str, for_s: float, *, say: bool) -> None:
        self._again_at[address] = time.monotonic() + for_s
        if self._told.get(address) != problem:
            self._told[address] = problem
            if say and not self._closed:
                _log.warning("%s; the work is done without it", problem)

    def _silence(self, address: str, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"Dask worker {address} did not answer in {_ANSWER_S:.0f} s"
        return f"Dask worker {address} cannot be asked: {type(error).__name__}: {error}"


def connect(scheduler: str) -> Any:
    """Return a client of the Dask scheduler at an address.

    Raises:
        WorkerFailed: nobody answers there, or it encrypts, which the connections of our workers do not.
    """
    from distributed import Client

    if scheduler.startswith("tls://"):
        raise WorkerFailed(
            f"{scheduler} is a cluster that encrypts, and MapReduce's own connections would not; use a cluster at tcp://"
        )
    try:
        return Client(scheduler, set_as_default=False, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise WorkerFailed(f"no Dask scheduler answers at {scheduler}: {error}") from None


@contextlib.contextmanager
def _paths_of(urls: Sequence[str]) -> Iterator[dict[str, str]]:
    """Give the local paths to look at for URLs, with their URLs; for what is to be made, a new file where it will be made."""
    paths: dict[str, str] = {}
    marks: dict[str, str] = {}  # by folder
    try:
        for url in urls:
            protocol, _, path = url.rpartition("://")
            if protocol not in ("", "file", "local"):
                continue
            path = os.path.abspath(path)
            found = _existing(path)
            if found not in marks and found != path and not any(sign in path for sign in "*?["):
                mark = os.path.join(found, f".mrdag-seen-{secrets.token_hex(8)}")
                with contextlib.suppress(OSError), open(mark, "xb"):  # else it is compared as what is there
                    marks[found] = mark
            paths[found] = url
        yield {marks.get(path, path): url for path, url in paths.items()}
    finally:
        for mark in marks.values():
            with contextlib.suppress(OSError):
                os.unlink(mark)


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
