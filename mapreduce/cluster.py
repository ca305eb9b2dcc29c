"""Worker processes on the machines of a Dask cluster that somebody else started, in the place of a ``Pool`` on this one.

One task of Dask per slot (a Dask worker has ``nthreads`` of them) holds one worker process, for as long as the pool lives; see
``cluster_loop``.  Tasks of MapReduce go to these processes over their own connections, and Dask hears nothing of them: it
would run the attempts of a killed worker again by itself.  Promises: a worker that is lost, with its Dask worker or alone, is
replaced where a slot is free; ``close`` leaves nothing in the scheduler or on the workers' disks.  Does not: encrypt.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from .channel import Channel, receive_exactly
from .cluster_loop import HELLO_LENGTH, Berth, Hello, hold_worker, wait_until_gone
from .cluster_machines import Machines, connect
from .errors import WorkerFailed
from .home import home_folder
from .listening import TOKEN_BYTES, Listener, address_towards
from .processes import Pool, Worker, describe_end, no_interrupt

SLOT_S = 60.0  # without any worker for so long: the cluster has no room
_LONGEST_HELLO = 1 << 16
_ASK_EVERY_S = 1.0
_END_S = 10.0
_END_NOTICE_S = 1.0  # from the close of a worker's connection to Dask's word on how it ended
_BRIEFLY_S = 0.02
_PAUSE_S = 10.0  # between two calls of start: nothing was wanted
_FAILED_STARTS = 3  # in a row on one Dask worker: it is left out


class Notice:
    """Dask's word on how a lost worker ended; of all that are lost together only the first without one is waited for."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    def of(self, future: Any) -> dict[str, Any]:
        """Return the result of the task that held it, or raise what distributed does for one that is lost or not yet done."""
        silent = time.monotonic() < self._silent_until
        try:
            said: dict[str, Any] = future.result(timeout=_BRIEFLY_S if silent else _END_NOTICE_S)
        except TimeoutError:
            self._silent_until = time.monotonic() + _END_NOTICE_S
            raise
        return said


class ClusterWorker(Worker):
    """A worker process on a cluster, as the pool sees it."""

    def __init__(
        self, hello: Hello, channel: Channel, log: str, future: Any, address: str, notice: Notice
    ) -> None:
        super().__init__(hello.number, channel, log)
        self.hello = hello
        self.future = future
        self.address = address
        self._notice = notice
        self._printed_bytes = 0

    @property
    def pid(self) -> int:
        """Its process id, on its own machine."""
        return self.hello.pid

    def kill(self) -> None:
        """Close its connection; the task that holds the process kills it and removes its disk."""
        self.channel.close()

    def end(self) -> None:
        """Close its connection, as ``kill`` does."""
        self.channel.close()

    def remove_stage_files(self, stage: int) -> None:
        """Have it remove what the maps of a stage left on its disk."""
        self.channel.send(("forget", stage))

    @property
    def ended(self) -> bool:
        """True if Dask says that the task which holds the process has ended, or that its worker is gone."""
        return self.future.status in ("finished", "error", "cancelled", "lost")

    def end_description(self) -> str:
        """Say how the process ended, as far as Dask knows."""
        try:
            ended = self._notice.of(self.future)
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
        self._client = connect(scheduler)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self.arrivals = self._woken.fileno()
        try:
            self._machines = Machines(self._client, scheduler, scratch, self._tell)
            slots = sum(self._machines.slots.values())
            self.workers = min(workers or slots, slots)
            self._token = secrets.token_bytes(TOKEN_BYTES)
            self._name = secrets.token_hex(8)  # in the names of our tasks, which everybody sees
            self._futures: dict[int, tuple[str, Any]] = {}  # of tasks that hold a worker, or are about to
            self._waiting: set[int] = set()  # of those, the ones that have not connected
            self._failures: Counter[str] = Counter()  # starts in a row that failed, by Dask worker
            self._failure = ""  # the last one
            self._used: set[str] = set()  # Dask workers that were given a task
            self._notice = Notice()
            self._asked = self._called = float("-inf")
            self._last_seen: float | None = None  # when workers began to be wanted, or the last one was there
            self._greeted: deque[tuple[Hello, socket.socket]] = deque()
            self._listener = _listen(self._client, scheduler, self._token, self._greet)
        except BaseException:
            self._client.close(timeout=2)
            self._wake.close()
            self._woken.close()
            raise

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
        if self._living or workers <= 0:
            self._last_seen = None
        elif self._last_seen is None or now - self._called > _PAUSE_S:
            self._last_seen = now
        self._called = now
        if missing > 0 and now - self._asked >= _ASK_EVERY_S:
            self._asked = now
            self._machines.look()
            self._ask_for(missing)
        if self._last_seen is not None and now - self._last_seen > SLOT_S:
            what = "has no slot free" if self._waiting else "has no worker left"
            why = f" ({self._failure})" if self._failure else ""
            raise WorkerFailed(
                f"the Dask cluster at {self.scheduler} {what}; waited {SLOT_S:.0f} s for one{why}"
            )
        return started

    def start_all(self) -> None:
        """Wait until all workers are there.

        Raises:
            WorkerFailed: they do not come, as for ``start``.
        """
        deadline = time.monotonic() + SLOT_S
        while len(self._living) < self.workers and time.monotonic() < deadline:
            self.start(self.workers)
            if self._living and not self._waiting and not any(free > 0 for free in self._free().values()):
                return  # the others are left out
            select.select([self._woken], [], [], _ASK_EVERY_S)

    def _free(self) -> Counter[str]:
        """Return how many slots are free for us on each Dask worker that can do the work."""
        slots = self._machines.slots
        free = Counter({address: count for address, count in slots.items() if self._machines.is_fit(address)})
        free.subtract(address for address, _ in self._futures.values() if address in free)
        return free

    def _ask_for(self, missing: int) -> None:
        self._forget_all_but(self._machines.slots)
        free = self._free()
        if self._failure and not self._living and not self._waiting and self._machines.are_all_out():
            raise WorkerFailed(f"no worker process could be started: {self._failure}")
        for _ in range(missing):
            address = max(free, key=lambda each: free[each], default="")
            if not address or free[address] < 1:
                return
            free[address] -= 1
            number = self._numbers
            self._numbers += 1
            near = address in self._machines.near
            berth = Berth(
                number=number, address=self._listener.address, token=self._token, shared=self._shared,
                environment={"MR_HOME": str(home_folder())} if near else {},
                folder=os.getcwd() if near else None,
            )  # fmt: skip
            future = self._client.submit(
                hold_worker, berth, key=f"mapreduce-worker-{self._name}-{number}", pure=False,
                retries=0, workers=[address], allow_other_workers=False,
            )  # fmt: skip
            future.add_done_callback(lambda _: self._tell())
            self._used.add(address)
            self._futures[number] = (address, future)
            self._waiting.add(number)

    def _welcome(self, hello: Hello, connection: socket.socket) -> list[Worker]:
        if hello.number not in self._waiting:  # Dask has run a task again whose worker had died
            connection.close()
            return []
        self._waiting.discard(hello.number)
        address, future = self._futures[hello.number]
        log = os.path.join(self.scratch, f"worker-{hello.number}.log")
        worker = ClusterWorker(hello, Channel(connection), log, future, address, self._notice)
        self._living[hello.number] = worker
        settings = self.settings(hello.number, hello.folder)
        worker.channel.send(
            {**settings, "disk": hello.disk, "log": hello.log, "serve": hello.host, "token": self._token}
        )
        return [worker]

    def _look_at_futures(self) -> None:
        """Forget the tasks that have ended, and count those that did before their worker had come."""
        for number, (address, future) in list(self._futures.items()):
            if future.status == "pending":
                continue
            if number in self._waiting:
                self._waiting.discard(number)
                text = str(future.exception(timeout=1)) if future.status == "error" else future.status
                self._count_failure(address, text)
            if number not in self._living:
                del self._futures[number]  # Dask forgets it too

    def has_started(self, worker: Worker) -> None:
        """Note that a worker is ready for tasks."""
        worker.ready = True
        self._failures.pop(self._futures[worker.number][0], None)

    def failed_to_start(self, worker: Worker, reason: str) -> None:
        """Note that a worker was lost before it was ready; raises nothing: ``start`` does when nobody is left."""
        address, _ = self._futures[worker.number]
        self._count_failure(address, reason)

    def _count_failure(self, address: str, reason: str) -> None:
        self._failures[address] += 1
        self._failure = f"on {address}: {reason}"
        if self._failures[address] >= _FAILED_STARTS:
            self._machines.leave_out(address, f"Dask worker {address} starts no worker process: {reason}")

    def _forget_all_but(self, slots: Mapping[str, int]) -> None:
        """Forget the tasks on Dask workers that are gone; Dask would keep them for one that takes the same address."""
        for number, (address, future) in list(self._futures.items()):
            if address not in slots and number not in self._living:
                self._waiting.discard(number)
                with contextlib.suppress(Exception):
                    self._client.cancel([future])
                del self._futures[number]

    def _greet(self, connection: socket.socket, deadline: float) -> None:
        """Hear which worker is there, whose token was right."""
        (length,) = HELLO_LENGTH.unpack(receive_exactly(connection, HELLO_LENGTH.size, deadline))
        if length > _LONGEST_HELLO:
            raise ConnectionError("not a hello")
        hello = Hello(**json.loads(receive_exactly(connection, length, deadline)))
        self._greeted.append((hello, connection))
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    # --- workers that go ---

    def close(self) -> None:
        """End all processes and leave the cluster as it was found; a Ctrl-C meanwhile does not stop it."""
        if self.closed:
            return
        self.closed = True
        self._machines.close()
        with no_interrupt():
            for worker in self.living():
                self.remove(worker)
            self._listener.close()
            while self._greeted:
                self._greeted.popleft()[1].close()
            # A scheduler that is gone, or a worker that does not answer, must not keep this process.
            with contextlib.suppress(Exception):
                self._client.cancel([future for _, future in self._futures.values()])
                self._client.sync(self._machines.look_for_slots)
                used = [address for address in self._used if address in self._machines.slots]
                self._machines.ask(wait_until_gone, _END_S, self._token, workers=used)
            self._client.close(timeout=2)
            self._wake.close()
            self._woken.close()

    def check_sees(self, urls: Sequence[str]) -> None:
        """Refuse files that a worker on another machine has no access to; see ``Machines.check_see``."""
        self._machines.check_see(urls)

    def _workers(self) -> list[ClusterWorker]:
        return [worker for worker in self._living.values() if isinstance(worker, ClusterWorker)]


def _listen(
    client: Any, scheduler: str, token: bytes, greet: Callable[[socket.socket, float], None]
) -> Listener:
    """Listen where the scheduler, by the name that it has for itself and for its workers, is reached from this machine."""
    host = urlsplit(client.scheduler_info()["address"]).hostname or "127.0.0.1"
    try:
        return Listener(address_towards(host), token, greet)
    except OSError as error:
        raise WorkerFailed(
            f"cannot listen for the workers of the Dask cluster at {scheduler}, whose scheduler calls itself {host}: {error}"
        ) from None
