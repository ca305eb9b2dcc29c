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
import secrets
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from .channel import Channel
from .cluster_loop import HELLO_LENGTH, Berth, Hello, hold_worker, keep_alive, wait_until_gone
from .cluster_machines import Machines, connect
from .cluster_runs import TOKEN_BYTES, receive_exactly
from .errors import WorkerFailed
from .home import home_folder
from .processes import Pool, Worker, describe_end, no_interrupt

SLOT_S = 60.0  # without any worker for so long: the cluster has no room
_HELLO_S = 20.0
_LONGEST_HELLO = 1 << 16
_ASK_EVERY_S = 1.0
_END_S = 10.0
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
        self._client = connect(scheduler)
        try:
            self._machines = Machines(self._client, scheduler, scratch)
            slots = self._machines.slots()
            if not slots:
                raise WorkerFailed(
                    f"the Dask scheduler at {scheduler} has no worker; start one with: dask worker {scheduler}"
                )
            self._machines.meet(list(slots))
            self.workers = min(workers or sum(slots.values()), sum(slots.values()))
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
        slots = self._machines.slots()
        self._forget_all_but(slots)
        free = Counter({address: count for address, count in slots.items() if self._machines.is_fit(address)})
        free.subtract(address for address, _ in self._futures.values())
        for _ in range(missing):
            address = max(free, key=lambda each: free[each], default="")
            if not address or free[address] < 1:
                return
            free[address] -= 1
            number = self._numbers
            self._numbers += 1
            host, port = self._listener.getsockname()[:2]
            near = address in self._machines.near
            berth = Berth(
                number=number, address=(host, port), token=self._token, shared=self._shared,
                environment={"MR_HOME": str(home_folder())} if near else {},
                folder=os.getcwd() if near else None,
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
                self._machines.ask(wait_until_gone, _END_S, self._token, on_error="ignore")
            self._client.close(timeout=2)
            self._wake.close()
            self._woken.close()

    def check_sees(self, urls: Sequence[str]) -> None:
        """Refuse files that a worker on another machine has no access to; see ``Machines.check_see``."""
        self._machines.check_see(urls)

    def _workers(self) -> list[ClusterWorker]:
        return [worker for worker in self._living.values() if isinstance(worker, ClusterWorker)]


def _listen(scheduler: str) -> socket.socket:
    """Listen where machines that reach the scheduler reach this one."""
    from distributed.utils import get_ip

    host = urlsplit(scheduler).hostname or "127.0.0.1"
    return socket.create_server((get_ip(socket.gethostbyname(host)), 0), backlog=512)
