"""Run one job both ways, interleaved, on warm workers of the same size, and say what was seen.

Each way of running has a process of its own (``compare_driver``), so that the memory, processor time and caches of one are not
those of another.  ``compare`` times them from outside, samples the memory of their process trees, and holds the outputs
against each other: outputs that differ end the comparison.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from jobs.catalog import find_job
from jobs.compare_cluster import ClusterUse
from jobs.compare_driver import Way
from jobs.compare_rows import Seen, graph_engine, mapreduce_engine
from jobs.compare_watch import watch_processes
from jobs.machine import describe_machine
from jobs.report.derive import covered
from jobs.report.model import Comparison, Drawing, Edge, Engine, Moment, Parallelism, Rewrites
from jobs.sizes import exact_size
from mapreduce.channel import receive_frame, send_frame
from mapreduce.driving import source_of
from mapreduce.errors import JobError
from mapreduce.inputs import list_files
from mapreduce.options import Options
from mapreduce.scratch import Scratch
from mapreduce.tuning import worker_environment

MOST_SINGLE_RUNS = 3  # of the baseline in one thread, which is slow
CACHE = "input in the page cache after the first run; outputs and intermediates on local disk"
PACKAGES = ("mrdag", "numpy", "pyarrow", "dask", "distributed", "fsspec")

#: Of ``mr run``, for the options that it shares with ``mr compare``.
_FLAGS = {
    "--partitions": "partitions", "--memory": "memory_bytes", "--split-size": "split_bytes",
    "--format": "input_format",
}  # fmt: skip

# The same sys.path as here, so that a driver imports the same modules.
_BOOT = "import sys; sys.path[:] = sys.argv[2].split(chr(10)); from jobs.compare_driver import main; main()"

Tell = Callable[[str], None]


class OutputsDiffer(JobError):
    """Two ways of running a job wrote different bytes; comparing their speed would mean nothing."""


def compare(
    job: str,
    inputs: Sequence[Any],
    *,
    parameters: Mapping[str, Any],
    options: Options,
    runs: int = 5,
    replications: Sequence[int] = (1, 3),
    scheduler: str | None = None,
    cache_bytes: int | None = None,
    baseline: bool = True,
    command: str = "",
    tell: Tell = lambda line: None,
) -> Comparison:
    """Run ``job`` by both engines ``runs`` times each, and once more before that to warm up, and return what was seen.

    Args:
        job: as ``mr run`` takes it.
        inputs: one per dataset of the job.
        parameters, options: of both engines; ``options.store`` is where MapReduce puts its intermediates.
        replications: of that store, one contestant for each; the first is the one that the verdict speaks of.
        scheduler: of the graph engine; the address of a Dask scheduler is for both engines, and ``options.workers`` are then the
            slots of its cluster.
        cache_bytes: of the graph engine.
        baseline: also run the same functions in one thread of one process.
        tell: called with a line of progress before each run.

    Raises:
        OutputsDiffer: a run wrote other bytes than the first; both outputs are kept, and named.
        JobError: a run failed.
    """
    found = find_job(job)
    sources = [source_of(given, options) for given in inputs]
    sizes = {file.url: file.bytes for source in sources for file in list_files(source)}
    ways = _ways(job, inputs, parameters, options, replications, scheduler, cache_bytes, baseline)
    seen: dict[str, list[Seen]] = {label: [] for label in ways}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(Scratch()).folder)
        drivers = {label: stack.enter_context(_driver(way)) for label, way in ways.items()}
        digests = _Digests()
        for number in range(runs + 1):  # the first is to warm up
            for label, driver in drivers.items():
                single = ways[label].engine == "single"
                if single and not 1 <= number <= MOST_SINGLE_RUNS:
                    continue
                tell(f"{label}: {f'run {number} of {runs}' if number else 'warming up'}")
                output = folder / f"output-{len(digests.seen)}"
                run = _timed(driver, output)
                digests.check(label, output)
                if number:
                    seen[label].append(run)
        dag = next(label for label, way in ways.items() if way.engine == "dag")
        graph = drivers[dag].ask(("describe", str(1 + _shown(seen[dag]))))  # the first was to warm up
    engines = [_engine(label, way, seen[label], options) for label, way in ways.items()]
    return Comparison(
        job=found.name,
        parameters={name: str(value) for name, value in parameters.items()},
        inputs=sizes,
        output_bytes=digests.bytes,
        output_sha256=digests.first[1],
        command=command,
        started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        machine=describe_machine() | {"cache": CACHE},
        versions={"Python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        memory_limit_bytes=max(options.workers, 1) * options.memory_bytes,
        threads_per_worker=1,
        engines=tuple(engines),
        drawing=Drawing(
            svg=graph["svg"], text=graph["text"], edges=tuple(Edge(**edge) for edge in graph["edges"])
        ),
        parallelism=Parallelism(
            **{**graph["parallelism"], "width": tuple(Moment(**at) for at in graph["parallelism"]["width"])}
        ),
        rewrites=Rewrites(applied=tuple(graph["applied"]), refused=tuple(graph["refused"])),
        warnings=tuple(_warnings(runs)),
    )


def _ways(
    job: str,
    inputs: Sequence[Any],
    parameters: Mapping[str, Any],
    options: Options,
    replications: Sequence[int],
    scheduler: str | None,
    cache_bytes: int | None,
    baseline: bool,
) -> dict[str, Way]:
    """Return the ways of running by their labels."""
    common = {name: value for name, value in vars(options).items() if name != "store_options"}
    whole = Way(
        engine="dag", job=job, inputs=tuple(inputs), parameters=dict(parameters), options=common,
        scheduler=scheduler, cache_bytes=cache_bytes,
    )  # fmt: skip
    ways: dict[str, Way] = {}
    there = scheduler if whole.on_cluster else None
    on_gfs = options.store.startswith("gfs://")
    for copies in replications if on_gfs else (1,):
        stored = {**options.store_options, **({"replication": copies} if on_gfs else {})}
        label = f"MapReduce, {copies} {'copy' if copies == 1 else 'copies'}" if on_gfs else "MapReduce"
        ways[label] = replace(
            whole, engine="mapreduce", options={**common, "store_options": stored, "scheduler": there}
        )
    ways["DAG"] = whole
    if baseline:
        stored = {**options.store_options, **({"replication": 1} if on_gfs else {})}
        ways["one thread"] = replace(
            whole,
            engine="single",
            options={**common, "workers": 0, "plan_for": options.planned_workers, "store_options": stored},
        )
    return ways


class _Driver:
    """A process that runs one way, as this process sees it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process, self.connection = process, connection

    def ask(self, message: tuple[str, str]) -> Any:
        """Have it do something and return the answer.

        Raises:
            JobError: it failed; the message is its own.
        """
        try:
            send_frame(self.connection, message)
            what, *answer = receive_frame(self.connection)
        except (EOFError, OSError):
            code = self.process.wait()
            raise JobError(f"the process that ran the job ended with status {code}") from None
        if what == "failed":
            error = JobError(answer[0])
            error.traceback_text = answer[1]  # type: ignore[attr-defined]
            raise error
        return answer[0]


@contextmanager
def _driver(way: Way) -> Iterator[_Driver]:
    ours, theirs = socket.socketpair()
    with ours:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), "\n".join(sys.path)],
            stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=(theirs.fileno(),),
            env={**worker_environment(), **os.environ},
            process_group=0,  # Ctrl-C is for this process, which then closes the connection
        )  # fmt: skip
        theirs.close()
        try:
            send_frame(ours, way)
            yield _Driver(process, ours)
        finally:
            ours.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _Digests:
    """Holds every output against the first."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.first = ("", "")  # who wrote it, and its digest
        self.kept = Path()
        self.bytes = 0

    def check(self, label: str, output: Path) -> None:
        digest = hashlib.sha256()
        size = 0
        for part in sorted(path for path in output.iterdir() if path.name[0] not in "_."):
            digest.update(f"{part.name} {part.stat().st_size}\n".encode())
            size += part.stat().st_size
            with part.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        found = digest.hexdigest()
        if not self.seen:
            self.first, self.kept, self.bytes = (label, found), output, size
        elif found != self.first[1]:
            # Not a scratch folder, which goes with this process.
            folder = tempfile.mkdtemp(prefix="mr-compare-")
            first, other = (shutil.move(path, folder) for path in (self.kept, output))
            raise OutputsDiffer(
                f"the outputs differ: {self.first[0]} wrote {first}, {label} wrote {other}; a job whose "
                "functions depend on the order of work, on time or on chance has no one result to compare"
            )
        else:
            shutil.rmtree(output)
        self.seen.append(found)


def _timed(driver: _Driver, output: Path) -> Seen:
    """Have a driver run once and watch its processes meanwhile."""
    os.sync()  # what the run before has written must not be this one's to wait for
    with watch_processes(driver.process.pid) as watched:
        facts = driver.ask(("run", str(output)))
    elsewhere = facts.get("cluster", ClusterUse())
    return Seen(
        began=watched.began, ended=watched.ended, cpu_s=watched.cpu_s + elsewhere.cpu_s,
        samples=elsewhere.add_to(watched.samples, watched.began),
        largest_bytes=max(watched.largest_bytes, elsewhere.largest_bytes), facts=facts,
        output_bytes=sum(path.stat().st_size for path in output.iterdir()),
    )  # fmt: skip


def _engine(label: str, way: Way, seen: Sequence[Seen], options: Options) -> Engine:
    build = graph_engine if way.engine == "dag" else mapreduce_engine
    workers = max(options.workers, 1) if way.engine != "single" else 1
    replication = 0 if way.engine == "dag" else int(way.options["store_options"].get("replication", 1))
    return build(
        seen, _shown(seen), engine=way.engine, label=label, workers=workers, replication=replication,
        command=_command(way),
    )  # fmt: skip


def _shown(seen: Sequence[Seen]) -> int:
    """Return which run is drawn: the median one, of an even number the faster of the middle two."""
    return sorted(range(len(seen)), key=lambda at: seen[at].wall_s)[(len(seen) - 1) // 2]


def _command(way: Way) -> str:
    """Return what a reader types to run one way, with all that is not as usual."""
    words = ["mr", "run", way.job]
    for given in way.inputs:
        words += [given] if isinstance(given, str) else list(given)
    words += ["-o", "OUTPUT"]
    for name, value in way.parameters.items():
        words += ["-p", f"{name}={value}"]
    options, usual = way.options, vars(Options())
    said: dict[str, Any] = {"--workers": None if way.on_cluster else options["workers"]}
    for flag, name in _FLAGS.items():
        if options[name] != usual[name]:
            said[flag] = exact_size(options[name]) if name.endswith("_bytes") else options[name]
    if way.engine == "dag":
        said |= {
            "--engine": "dag",
            "--scheduler": way.scheduler,
            "--cache": None if way.cache_bytes is None else exact_size(way.cache_bytes),
        }
    else:
        said |= {"--scheduler": options["scheduler"]}
        said |= {"--store": options["store"] if options["store"] != usual["store"] else None}
        said |= {"--replication": options["store_options"].get("replication")}
    for flag, value in said.items():
        words += [] if value is None else [flag, str(value)]
    return shlex.join(words)


def _warnings(runs: int) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    if cores == 1:
        yield "one core: nothing can run at the same time as anything else"
    if load > cores + 1.5:
        yield f"the machine was busy: a load of {load:.1f} on {cores} cores at the end"
    if 1 < runs < 5:
        yield f"{runs} runs of each: the true median lies between lowest and highest with a chance of {covered(runs):.0%}"
