"""A process that runs one job in one way, again and again, with workers that stay warm.

``mr compare`` starts one for each way, so that memory, processor time and caches of one engine are not those of
another.  It asks by messages over a socket, as workers of the pool are asked.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from mapreduce.channel import receive_frame, send_frame
from mapreduce.pandas_import import put_off_pandas
from mapreduce.scratch import Scratch

if TYPE_CHECKING:
    from dag.graph import Graph
    from dag.run import Session
    from jobs.engine import GraphResult


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of running a job: what ``mr run`` would be given.

    ``engine`` is "mapreduce", "dag" or "single" (the sequential mode of MapReduce, in one process).
    """

    engine: str
    job: str
    inputs: tuple[Any, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    scheduler: str | None = None
    cache_bytes: int | None = None

    @property
    def on_cluster(self) -> bool:
        """True if a Dask cluster that somebody else started does the work."""
        return self.engine != "single" and self.scheduler is not None and "://" in self.scheduler


def main() -> None:
    """Serve the process at the other end of the socket until it closes it."""
    # Also where a shell in the background has its commands ignore it: only this process sends it to itself.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection = socket.socket(fileno=int(sys.argv[1]))
    put_off_pandas()
    working = threading.Event()
    threading.Thread(target=_interrupt_at_the_end, args=(connection, working), daemon=True).start()
    with suppress(EOFError, OSError, KeyboardInterrupt), ExitStack() as stack:
        way = receive_frame(connection)
        sys.argv[:] = ["mr", "compare", way.job]  # so that `mr runs` can tell these runs
        runner = _Runner(way, stack)
        while True:
            what, output = receive_frame(connection)
            working.set()
            answer = _answer(runner, what, output)
            working.clear()
            send_frame(connection, answer)


def _answer(runner: _Runner, what: str, output: str) -> tuple[Any, ...]:
    try:
        return ("done", runner.run(output) if what == "run" else runner.describe(int(output)))
    except Exception as error:
        from jobs.cli import known_failure

        text = known_failure(error)
        if text is None:
            raise
        return ("failed", text, getattr(error, "traceback_text", ""))


def _interrupt_at_the_end(connection: socket.socket, working: threading.Event) -> None:
    """Interrupt this process as Ctrl-C does when the other end is gone while it works, so that it leaves nothing behind."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    if working.is_set():
        os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def _printing_to(descriptor: int) -> Iterator[None]:
    """Have what this process prints, from whatever thread or library, go elsewhere meanwhile."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(descriptor, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    source.seek(0)
    shutil.copyfileobj(source, target)
    target.flush()


class _Runner:
    def __init__(self, way: Way, stack: ExitStack) -> None:
        import pyarrow as pa

        from jobs.catalog import find_job
        from mapreduce.driving import absolute, source_of
        from mapreduce.options import Options

        put_off_pandas()
        pa.set_cpu_count(1)  # workers are the parallelism, in every way of running
        self.way, self.stack = way, stack
        self.job = find_job(way.job)
        self.options = Options(**way.options)
        self.pool: Any = None
        self.session: Session | None = None
        self.sizes: Mapping[str, int] | None = None
        self.results: list[GraphResult] = []
        self.run_id = ""
        self.scratch = stack.enter_context(Scratch()).folder
        self.inputs: Sequence[Any] = way.inputs
        if way.on_cluster:  # its workers have other working folders
            self.inputs = [absolute(source_of(given, self.options)) for given in way.inputs]
        self.client: Any = None
        if way.engine == "mapreduce":
            from mapreduce.runner import open_pool

            # Beside the other engine's tasks, which need the slots while these workers wait.
            self.pool = stack.enter_context(open_pool(self.options, self.scratch, shared=True))
            if self.pool.scheduler is not None:
                self.pool.start_all()
        if way.on_cluster:
            from distributed import Client

            self.client = stack.enter_context(Client(way.scheduler, set_as_default=False))

    def run(self, output: str) -> dict[str, Any]:
        """Run the job once; returns what its report needs, times in seconds since the epoch."""
        # Appended to, since processes that the first run started go on printing here.
        with open(os.path.join(self.scratch, "printed"), "a+b") as printed:
            printed.truncate(0)
            try:
                with _printing_to(printed.fileno()):
                    facts = self._run_watched(output)
            except BaseException:
                _copy(printed, sys.stdout.buffer)
                raise
            if os.fstat(printed.fileno()).st_size:
                from mapreduce.home import find_run

                with (find_run(self.run_id) / "driver.log").open("wb") as log:
                    _copy(printed, log)
        return facts

    def _run_watched(self, output: str) -> dict[str, Any]:
        if self.client is None:
            return self._run(output)
        from jobs.compare_cluster import watching_cluster

        pids = None if self.pool is None else self.pool.pids
        with watching_cluster(self.client, pids) as used:
            facts = self._run(output)
        return {**facts, "cluster": used}

    def _run(self, output: str) -> dict[str, Any]:
        way = self.way
        if way.engine == "dag":
            return self._run_graph(output)
        from mapreduce.runner import run

        result = run(
            self.job, *self.inputs, output=output, parameters=way.parameters, options=self.options,
            pool=self.pool,
        )  # fmt: skip
        self.run_id = result.run
        return {
            "stages": [asdict(stage) for stage in result.stages],
            "driver_read_bytes": result.driver_read_bytes,
            "driver_planned_bytes": result.driver_planned_bytes,
        }

    def _run_graph(self, output: str) -> dict[str, Any]:
        from jobs import engine
        from jobs.graph_facts import planned_by_stage, ready_times

        way, before = self.way, self.session
        moved, spilled = (0, 0) if before is None else (before.moved_bytes, before.spilled_bytes)
        result = engine.run(
            self.job, *self.inputs, output=output, parameters=way.parameters, options=self.options,
            start=self._start, sizes=self._sizes(),
        )  # fmt: skip
        self.results.append(result)
        assert self.session is not None
        self.run_id = result.run
        ready = ready_times(result.graphs, result.rows)
        return {
            "rows": [asdict(row) for row in result.rows],
            "scheduler": f"{result.scheduler}: {result.scheduler_reason}",
            "ready": ready,
            "phases": [{"begin": ran.begin, "end": ran.end} for ran in result.graphs],
            "planned_bytes": planned_by_stage(result.graphs),
            "moved_bytes": self.session.moved_bytes - moved,
            "spilled_bytes": self.session.spilled_bytes - spilled,
        }

    def _sizes(self) -> Mapping[str, int]:
        from jobs.trial import measured_sizes
        from mapreduce.driving import source_of

        if self.sizes is None:
            sources = [source_of(given, self.options) for given in self.way.inputs]
            self.sizes = measured_sizes(self.job, sources, self.way.parameters, self.options)
        return self.sizes

    def _start(self, graph: Graph, on_event: Any) -> Session:
        from jobs.engine import open_session

        if self.session is None:
            self.session = self.stack.enter_context(
                open_session(
                    graph,
                    self.options,
                    scheduler=self.way.scheduler,
                    cache_bytes=self.way.cache_bytes,
                    folder=self.scratch,
                )
            )
        return self.session

    def describe(self, number: int) -> dict[str, Any]:
        """Return the pictures and the analysis of what ran ``number`` runs after the first."""
        from jobs.graph_facts import describe_run

        return describe_run(self.results[number], self.options.workers)


if __name__ == "__main__":
    main()
