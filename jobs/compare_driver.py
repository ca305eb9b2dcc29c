"""A process that runs one job in one way, again and again, with workers that stay warm.

``mr compare`` starts one for each way, so that memory, processor time and caches of one engine are not those of
another.  It asks by messages over a socket, as workers of the pool are asked.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mapreduce.channel import receive_frame, send_frame

if TYPE_CHECKING:
    from dag.graph import Graph
    from dag.run import Session


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


def main() -> None:
    """Serve the process at the other end of the socket until it closes it."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    from mapreduce.pandas_import import put_off_pandas

    put_off_pandas()
    with ExitStack() as stack:
        try:
            runner = _Runner(receive_frame(connection), stack)
            while True:
                what, output = receive_frame(connection)
                try:
                    send_frame(
                        connection, ("done", runner.run(output) if what == "run" else runner.describe())
                    )
                except Exception as error:
                    text = str(error) or type(error).__name__
                    send_frame(connection, ("failed", text, getattr(error, "traceback_text", "")))
        except (EOFError, OSError):
            return


class _Runner:
    def __init__(self, way: Way, stack: ExitStack) -> None:
        import pyarrow as pa

        from jobs.catalog import find_job
        from mapreduce.runner import Options

        pa.set_cpu_count(1)  # workers are the parallelism, in every way of running
        self.way, self.stack = way, stack
        self.job = find_job(way.job)
        self.options = Options(**way.options)
        self.pool: Any = None
        self.session: Session | None = None
        self.last: Any = None
        if way.engine == "mapreduce":
            from mapreduce.processes import Pool
            from mapreduce.scratch import Scratch

            scratch = stack.enter_context(Scratch()).folder
            self.pool = stack.enter_context(
                Pool(self.options.workers, memory_bytes=self.options.memory_bytes, scratch=scratch)
            )

    def run(self, output: str) -> dict[str, Any]:
        """Run the job once; returns what its report needs, times in seconds since the epoch."""
        way = self.way
        begin = time.time()
        if way.engine == "dag":
            facts = self._run_graph(output)
        else:
            from mapreduce.runner import run

            result = run(
                self.job, *way.inputs, output=output, parameters=way.parameters, options=self.options,
                pool=self.pool,
            )  # fmt: skip
            facts = {"stages": [asdict(stage) for stage in result.stages]}
        return {"begin": begin, "end": time.time(), **facts}

    def _run_graph(self, output: str) -> dict[str, Any]:
        from jobs import engine
        from jobs.graph_facts import planned_by_stage, ready_times

        way, before = self.way, self.session
        moved, spilled = (0, 0) if before is None else (before.moved_bytes, before.spilled_bytes)
        self.last = result = engine.run(
            self.job, *way.inputs, output=output, parameters=way.parameters, options=self.options,
            start=self._start,
        )  # fmt: skip
        assert self.session is not None
        ready = ready_times(result.graphs, result.rows)
        return {
            "rows": [asdict(row) for row in result.rows],
            "ready": ready,
            "phases": [{"begin": ran.begin, "end": ran.end} for ran in result.graphs],
            "planned_bytes": planned_by_stage(result.graphs),
            "moved_bytes": self.session.moved_bytes - moved,
            "spilled_bytes": self.session.spilled_bytes - spilled,
        }

    def _start(self, graph: Graph, on_event: Any) -> Session:
        from jobs.engine import open_session

        if self.session is None:
            self.session = self.stack.enter_context(
                open_session(
                    graph, self.options, scheduler=self.way.scheduler, cache_bytes=self.way.cache_bytes
                )
            )
        return self.session

    def describe(self) -> dict[str, Any]:
        """Return the pictures and the analysis of the last graph that ran."""
        from jobs.graph_facts import describe_run

        return describe_run(self.last, self.options.workers)


if __name__ == "__main__":
    main()
