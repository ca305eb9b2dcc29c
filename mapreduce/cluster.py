"""Worker processes on the machines of a Dask cluster that somebody else started, in the place of a ``Pool`` on this one.

One task of Dask per slot (a Dask worker has ``nthreads`` of them) holds one worker process, for as long as the pool lives; see
``cluster_loop``.  Tasks of MapReduce go to these processes over their own connections, and Dask hears nothing of them: it
would run the attempts of a killed worker again by itself.  Promises: a worker that is lost, with its Dask worker or alone, is
replaced where a slot is free; ``close`` leaves nothing in the scheduler or on the workers' disks.  Does not: encrypt.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import platform
import secrets
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

from .channel import Channel
from .cluster_loop import HELLO_LENGTH, Berth, Hello, hold_worker, keep_alive, look_at, wait_until_gone
from .cluster_runs import TOKEN_BYTES, receive_exactly
from .errors import BadJob, WorkerFailed
from .home import home_folder
from .processes import Pool, Worker, describe_end, no_interrupt

CONNECT_S = 10
SLOT_S = 60.0  # without any worker for so long: the cluster has no room
_HELLO_S = 20.0
_LONGEST_HELLO = 1 << 16
_ASK_EVERY_S = 1.0
_END_S = 10.0
_ANSWER_S = 20.0
_END_NOTICE_S = 1.0  # from the close of a worker's connection to Dask's word on how it ended
_FAILED_STARTS = 10


class ClusterWorker(Worker):
    """A worker process on a cluster, as the pool sees it."""

    def __init__(self, hello: Hello, channel: Channel, log: str, future: Any, address: str) -> None:
        super().__init__(hello.number, channel, log)
        self.hello = hello
        self.future = future
        self.address = address
        self._printed_bytes = 0

    @property
    def ended(self) -> bool:
        """True if Dask says that the task which holds the process has ended, or that its worker is gone."""
        return self.future.status in ("finished", "error", "cancelled", "lost")

    def end_description(self) -> str:
        """Say how the process ended, as far as Dask knows."""
        try:
            ended = self.future.result(timeout=_END_NOTICE_S)
        except Exception:  # a time-out, or one of the words that distributed has for a worker that is gone
            return f"was lost with its Dask worker {self.address}"
        unsent = ended["log_bytes"] - self._printed_bytes
        if unsent > 0:  # a crash leaves its last words there
            self.keep_printed(ended["printed"][-unsent:])
        return f"{describe_end(ended['code'])} on {self.address}"

    def keep_printed(self, printed: bytes) -> None:
        """Add to its log what the worker has sent."""
        self._printed_bytes += len(printed)
        super().keep_printed(printed)


class ClusterPool(Pool):
    """Worker processes on the cluster of the Dask scheduler at ``scheduler``.

    Args:
        scheduler: its address, such as ``tcp://host:8786``.
        workers: at most so many; by default one per slot of the cluster.
        memory_bytes, watchdog_bytes, timeout_s: as for ``Pool``.
        scratch: folder on this machine for what the workers print.
        shared: leave the slots to other tasks of Dask too, for workers that wait more than they work.

    Raises:
        WorkerFailed: nobody answers there, or the cluster has no worker, or its workers cannot run this package.
    """

    def __init__(
        self,
        scheduler: str,
        *,
        memory_bytes: int,
        scratch: str,
        workers: int | None = None,
        watchdog_bytes: int | None = None,
        timeout_s: float = 60.0,
        shared: bool = False,
    ) -> None:
        super().__init__(
            0, memory_bytes=memory_bytes, scratch=scratch, watchdog_bytes=watchdog_bytes, timeout_s=timeout_s
        )
        self.scheduler = scheduler
        self._shared = shared
        self._client = _connect(scheduler)
        try:
            slots = self._slots()
            if not slots:
                raise WorkerFailed(
                    f"the Dask scheduler at {scheduler} has no worker; start one with: dask worker {scheduler}"
                )
            self.workers = min(workers or sum(slots.values()), sum(slots.values()))
            self._mark = os.path.join(scratch, f"seen-{secrets.token_hex(8)}")
            with open(self._mark, "xb"):
                pass
            self._near: set[str] = set()  # Dask workers that see the files of this machine
            self._far: set[str] = set()
            self._needed: list[str] = []  # URLs that every worker must see
            self._meet(list(slots))
            self._token = secrets.token_bytes(TOKEN_BYTES)
            self._futures: dict[int, tuple[str, Any]] = {}  # of tasks that hold a worker, or are about to
            self._waiting: set[int] = set()  # of those, the ones that have not connected
            self._asked = time.monotonic()
            self._last_seen = time.monotonic()
            self._greeted: deque[tuple[Hello, socket.socket]] = deque()
            self._wake, self._woken = socket.socketpair()
            self._woken.setblocking(False)
            self.arrivals = self._woken.fileno()
            self._listener = _listen(scheduler)
            threading.Thread(target=self._accept_forever, daemon=True, name="arrivals").start()
        except BaseException:
            self._client.close(timeout=2)
            raise

    @property
    def processes(self) -> dict[int, int]:
        """Process ids of the living workers, on their own machines, by worker number."""
        return {worker.number: worker.hello.pid for worker in self._workers()}

    def pids(self) -> dict[str, list[int]]:
        """Return the process ids of the living workers, by the address of the Dask worker that holds them."""
        found: dict[str, list[int]] = {}
        for worker in self._workers():
            found.setdefault(worker.address, []).append(worker.hello.pid)
        return found

    # --- workers that come ---

    def start(self, workers: int) -> list[Worker]:
        """Ask for processes until ``workers`` are there or on their way; return those that have come.

        Raises:
            WorkerFailed: none can be had.
        """
        if self.closed:
            raise ValueError("the pool is closed")
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1 << 10)
        started: list[Worker] = []
        while self._greeted:
            hello, connection = self._greeted.popleft()
            started += self._welcome(hello, connection)
        self._look_at_futures()
        missing = min(workers, self.workers) - len(self._living) - len(self._waiting)
        now = time.monotonic()
        if self._living:
            self._last_seen = now
        if missing > 0 and (not self._futures or now - self._asked >= _ASK_EVERY_S):
            self._asked = now
            self._ask_for(missing)
        if not self._living and now - self._last_seen > SLOT_S:
            what = "has no slot free" if self._waiting else "has no worker left"
            raise WorkerFailed(f"the Dask cluster at {self.scheduler} {what}; waited {SLOT_S:.0f} s for one")
        return started

    def start_all(self) -> None:
        """Wait until all workers are there.

        Raises:
            WorkerFailed: they do not come, as for ``start``.
        """
        deadline = time.monotonic() + SLOT_S
        while len(self._living) < self.workers and time.monotonic() < deadline:
            self.start(self.workers)
            select.select([self._woken], [], [], _ASK_EVERY_S)

    def _ask_for(self, missing: int) -> None:
        slots = self._slots()
        self._forget_all_but(slots)
        free = Counter({address: count for address, count in slots.items() if self._is_fit(address)})
        free.subtract(address for address, _ in self._futures.values())
        for _ in range(missing):
            address = max(free, key=lambda each: free[each], default="")
            if not address or free[address] < 1:
                return
            free[address] -= 1
            number = self._numbers
            self._numbers += 1
            host, port = self._listener.getsockname()[:2]
            berth = Berth(
                number=number, address=(host, port), token=self._token, shared=self._shared,
                environment={"MR_HOME": str(home_folder())} if address in self._near else {},
                folder=os.getcwd() if address in self._near else None,
            )  # fmt: skip
            future = self._client.submit(
                hold_worker, berth, key=f"mapreduce-worker-{self._token[:8].hex()}-{number}", pure=False,
                retries=0, workers=[address], allow_other_workers=False,
            )  # fmt: skip
            future.add_done_callback(lambda _: self._tell())
            self._futures[number] = (address, future)
            self._waiting.add(number)

    def _welcome(self, hello: Hello, connection: socket.socket) -> list[Worker]:
        if hello.number not in self._waiting:  # Dask has run a task again whose worker had died
            connection.close()
            return []
        self._waiting.discard(hello.number)
        address, future = self._futures[hello.number]
        log = os.path.join(self.scratch, f"worker-{hello.number}.log")
        worker = ClusterWorker(hello, Channel(connection), log, future, address)
        self._living[hello.number] = worker
        settings = self.settings(hello.number, hello.folder)
        worker.channel.send(
            {**settings, "disk": hello.disk, "log": hello.log, "serve": hello.host, "token": self._token}
        )
        return [worker]

    def _look_at_futures(self) -> None:
        """Forget the tasks that have ended, and give up when too many did before their worker had come."""
        for number, (address, future) in list(self._futures.items()):
            if future.status == "pending":
                continue
            if number in self._waiting:
                self._waiting.discard(number)
                self.start_failures += 1
                if self.start_failures >= _FAILED_STARTS or (future.status == "error" and not self._living):
                    text = str(future.exception(timeout=1)) if future.status == "error" else future.status
                    raise WorkerFailed(f"no worker process could be started on {address}: {text}")
            if number not in self._living:
                del self._futures[number]  # Dask forgets it too

    def _forget_all_but(self, slots: Mapping[str, int]) -> None:
        """Forget the tasks on Dask workers that are gone; Dask would keep them for one that takes the same address."""
        for number, (address, future) in list(self._futures.items()):
            if address not in slots and number not in self._living:
                self._waiting.discard(number)
                with contextlib.suppress(Exception):
                    self._client.cancel([future])
                del self._futures[number]

    def _is_fit(self, address: str) -> bool:
        """Tell whether a Dask worker, perhaps one that came later, can do our work."""
        if address not in self._near | self._far:
            try:
                self._meet([address])
                self.check_sees(self._needed)
            except Exception:  # it is gone again, or has other versions or files: the work is done without it
                return False
        return True

    def _accept_forever(self) -> None:
        while not self.closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Hear who is there; nothing is unpickled before the token was right."""
        try:
            connection.settimeout(_HELLO_S)
            if not hmac.compare_digest(receive_exactly(connection, TOKEN_BYTES), self._token):
                raise ConnectionError("another token")
            (length,) = HELLO_LENGTH.unpack(receive_exactly(connection, HELLO_LENGTH.size))
            if length > _LONGEST_HELLO or self.closed:
                raise ConnectionError("not a hello")
            hello = Hello(**json.loads(receive_exactly(connection, length)))
            keep_alive(connection)
        except (OSError, ValueError, TypeError):
            connection.close()
            return
        self._greeted.append((hello, connection))
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    # --- workers that go ---

    def remove(self, worker: Worker) -> None:
        """Close a worker's connection; the task that holds its process kills it and removes its disk."""
        worker.channel.close()
        self._living.pop(worker.number, None)

    def remove_stage_files(self, stage: int) -> None:
        """Have the workers remove what the maps of a stage left on their disks."""
        for worker in self.living():
            worker.channel.send(("forget", stage))

    def close(self) -> None:
        """End all processes and leave the cluster as it was found; a Ctrl-C meanwhile does not stop it."""
        if self.closed:
            return
        self.closed = True
        with no_interrupt():
            for worker in self.living():
                self.remove(worker)
            self._listener.close()
            while self._greeted:
                self._greeted.popleft()[1].close()
            # A scheduler that is gone, or a worker that does not answer, must not keep this process.
            with contextlib.suppress(Exception):
                self._client.cancel([future for _, future in self._futures.values()])
                self._ask(wait_until_gone, _END_S, self._token, on_error="ignore")
            self._client.close(timeout=2)
            self._wake.close()
            self._woken.close()

    # --- what the cluster is ---

    def check_sees(self, urls: Sequence[str]) -> None:
        """Refuse files that a worker on another machine has no access to.

        A local path may lie on a filesystem that all machines share: then they see the same file there.

        Raises:
            BadJob: a local path is another one there, or not there, or a chunk store is only here.
        """
        self._needed = list(urls)
        far = [address for address in self._slots() if address in self._far]
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
            for address, there in self._ask(look_at, list(paths), workers=far).items():
                other = [
                    url for url, mine, its in zip(paths.values(), here, there, strict=True) if mine != its
                ]
                if other and last:
                    raise BadJob(f"{other[0]} is a file of this machine, {_elsewhere(address)}")
                if other:
                    break
            else:
                return

    def _meet(self, addresses: list[str]) -> None:
        """Find out whether Dask workers can run our processes, and whether they see the files of this machine.

        Raises:
            WorkerFailed: a worker has another version of Python or of this package.
        """
        here = platform.python_version_tuple()[:2]
        for address, its in self._ask(platform.python_version_tuple, workers=addresses).items():
            if tuple(its[:2]) != here:
                raise WorkerFailed(
                    f"Dask worker {address} has Python {'.'.join(its[:2])}, this is {'.'.join(here)}; functions "
                    "travel between like versions only"
                )
        wanted = metadata.version("mrdag")
        found = self._ask(metadata.version, "mrdag", workers=addresses, on_error="return")
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
        for address, its in self._ask(look_at, [self._mark], workers=addresses).items():
            (self._near if its == mine else self._far).add(address)

    def _slots(self) -> dict[str, int]:
        """Return how many slots each Dask worker has."""
        try:
            return dict(self._client.sync(self._client.nthreads, callback_timeout=_ANSWER_S))
        except Exception:  # the scheduler is gone, in one of the many words that distributed has for that
            return {}

    def _ask(self, function: Callable[..., Any], *given: Any, **settings: Any) -> dict[str, Any]:
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

    def _workers(self) -> list[ClusterWorker]:
        return [worker for worker in self._living.values() if isinstance(worker, ClusterWorker)]


def _connect(scheduler: str) -> Any:
    from distributed import Client

    try:
        return Client(scheduler, set_as_default=False, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise WorkerFailed(f"no Dask scheduler answers at {scheduler}: {error}") from None


def _listen(scheduler: str) -> socket.socket:
    """Listen where machines that reach the scheduler reach this one."""
    from distributed.utils import get_ip

    host = urlsplit(scheduler).hostname or "127.0.0.1"
    return socket.create_server((get_ip(socket.gethostbyname(host)), 0), backlog=512)


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
