"""All-reduce beside torch's gloo and mpi4py with MPICH: the caller's own arrays, arrays from ``comm.empty()``, and TCP.

The ranks of all contenders are started once; then each does a few calls in turn, size after size, so that a machine which
slows down does so for all.  A call's time is that of its slowest rank, from a barrier on; every result is checked.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from measuring import HERE, PYTHON, Contender, Row, Timing, keep, shown_command

SIZES = (8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
RANKS = (2, 4)
LARGE, SMALL = 16 << 20, 1 << 20
ROOF_BYTES, ROOF_TIMES = 64 << 20, 5
LEAST_ROUNDS = 5
#: A contender and the kind of its arrays.
Case = tuple[str, str]
#: Gloo has nothing but TCP.
PEERS: tuple[Case, ...] = (("gloo", "own"), ("mpich", "own"))
WORDS: dict[Case, str] = {
    ("shm", "own"): "mrdag, own arrays",
    ("shm", "empty"): "mrdag, comm.empty()",
    ("tcp", "own"): "mrdag over TCP",
    ("gloo", "own"): "torch gloo",
    ("mpich", "own"): "mpi4py, MPICH",
    ("mpich over TCP", "own"): "mpi4py, MPICH over TCP",
}
#: (kind, ranks) -> at least so many times as fast as the faster of the others, at 16 MiB and above.
AIMS = {("own", 2): 3.0, ("own", 4): 2.5, ("empty", 2): 5.0, ("empty", 4): 5.0}


class Fine(Timing):
    """A timing in microseconds' precision."""

    def to_json(self) -> dict[str, Any]:
        """Return the timing as JSON."""
        return {
            "command": self.command,
            "seconds": [float(f"{second:.4g}") for second in self.seconds],
            "median_s": float(f"{self.median_s:.4g}"),
        }


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks of one contender."""

    command: str
    process: list[subprocess.Popen[bytes]]
    connections: list[Connection]
    log: Path

    def ask(self, what: str, *rest: Any) -> list[Any]:
        """Tell all ranks the same and return their answers, in the order of ranks."""
        return self.ask_each([(what, *rest)] * len(self.connections))

    def ask_each(self, messages: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Tell each rank its own and return their answers; raises RuntimeError if one has ended."""
        try:
            for connection, message in zip(self.connections, messages, strict=True):
                connection.send(message)
            return [connection.recv() for connection in self.connections]
        except (EOFError, ConnectionError) as error:
            for each in self.process:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(15)
            said = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"a rank has ended: {self.command}\n{said}") from error

    def slowest(self, what: str, *rest: Any) -> list[float]:
        """Return the times of the slowest rank, call by call."""
        return [max(times) for times in zip(*self.ask(what, *rest), strict=True)]


#: Its default is the fastest of its settings here; without these it goes through shared memory.
MPICH_TCP = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}


def contenders(ranks: int) -> dict[str, list[Contender]]:
    """Return the processes to start, by contender."""
    script = str(HERE / "allreduce_ranks.py")
    one_thread = {"OMP_NUM_THREADS": "1"}
    port = str(free_port())
    mpiexec = str(Path(PYTHON).parent / "mpiexec")
    mpi = [mpiexec, "-n", str(ranks), PYTHON, script, "mpi"]
    found = {
        name: [Contender(name=name, command=[PYTHON, script, name, str(ranks)], environment=one_thread)]
        for name in ("shm", "tcp")
    }
    found["gloo"] = [
        Contender(
            name="gloo",
            command=[PYTHON, script, "gloo", str(rank), str(ranks), port],
            environment=one_thread | {"GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(ranks)
    ]
    if Path(mpiexec).exists():
        found["mpich"] = [Contender(name="mpich", command=mpi, environment=one_thread)]
        found["mpich over TCP"] = [
            Contender(name="mpich over TCP", command=mpi, environment=one_thread | MPICH_TCP)
        ]
    return found


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def started(ranks: int, only: Sequence[str] = ()) -> Iterator[dict[str, Group]]:
    """Start all contenders; on exit their processes have ended."""
    groups: dict[str, Group] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allreduce-")))
        for name, processes in contenders(ranks).items():
            if only and name not in only:
                continue
            path = str(folder / f"{len(groups)}.sock")
            listener = stack.enter_context(Listener(path, "AF_UNIX", backlog=64, authkey=b"allreduce"))
            log = stack.enter_context((folder / f"{len(groups)}.log").open("wb"))
            running = [
                subprocess.Popen(
                    each.command,
                    env={**os.environ, **each.environment, "ALLREDUCE_SOCKET": path, "ALLREDUCE_NAME": name},
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                )
                for each in processes
            ]
            for each in running:
                stack.callback(ended, each)
            connections = [listener.accept() for _ in range(ranks)]
            by_rank = {connection.recv()[1]: connection for connection in connections}
            for connection in connections:
                stack.enter_context(connection)
            groups[name] = Group(
                command=shown_command(processes[0], folder),
                process=running,
                connections=[by_rank[rank] for rank in range(ranks)],
                log=Path(log.name),
            )
        yield groups
        # Those that wait for a socket end when it is closed.
        for group in groups.values():
            for connection in group.connections:
                connection.close()


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, or end it."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def calls(nbytes: int) -> int:
    """Return how many calls of a size are made in a row."""
    return 20 if nbytes <= 1 << 20 else 5 if nbytes <= 16 << 20 else 2 if nbytes < 256 << 20 else 1


def measure(
    groups: Mapping[str, Group], sizes: Sequence[int], rounds: int
) -> dict[tuple[Case, int], list[float]]:
    """Return the seconds by case and bytes: for each round the median of its calls."""
    cases = [case for case in WORDS if case[0] in groups]
    found: dict[tuple[Case, int], list[float]] = {}
    for nbytes in sizes:
        for number in range(rounds + 1):  # the first is a warm-up
            for case in cases:
                times = groups[case[0]].slowest("reduce", case[1], nbytes, calls(nbytes))
                if number:
                    found.setdefault((case, nbytes), []).append(statistics.median(times))
        for group in groups.values():
            group.ask("forget")
    return found


@dataclass(frozen=True, kw_only=True)
class Roofs:
    """Bytes per second: of memory, all ranks at once, by the bytes of a rank's arrays, and of a raw stream through each rank."""

    memory: dict[int, float]
    stream: float

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON."""
        memory = {size_words(nbytes): round(rate) for nbytes, rate in self.memory.items()}
        return {"memory_bytes_per_s": memory, "stream_bytes_per_s": round(self.stream)}


def roofs(group: Group, sizes: Sequence[int]) -> Roofs:
    """Return the best of a few: of the memory that an all-reduce of each size has in use, three arrays of a third in a rank."""
    ranks = len(group.connections)
    ports = group.ask("listen")
    following = [("stream", ports[(rank + 1) % ranks], ROOF_BYTES, ROOF_TIMES) for rank in range(ranks)]
    stream = [max(times) for times in zip(*group.ask_each(following), strict=True)]
    memory = {}
    for nbytes in sizes:
        # As many passes as let ranks that begin one after another still work at once.
        elements, passes = nbytes // 12, max(1, ROOF_BYTES // nbytes)
        spans = zip(*group.ask("triad", elements, passes, ROOF_TIMES), strict=True)
        shortest = min(max(end for _, end in run) - min(begin for begin, _ in run) for run in spans)
        memory[nbytes] = passes * 12 * elements * ranks / shortest
    return Roofs(memory=memory, stream=ROOF_BYTES / min(stream))


def roof_s(case: Case, ranks: int, nbytes: int, roof: Roofs) -> float:
    """Return the least seconds: every array read and written once, or 2(P-1)/P of it through each rank's socket."""
    if case[0] in ("shm", "mpich"):
        return 2 * ranks * nbytes / roof.memory[nbytes]
    return 2 * (ranks - 1) / ranks * nbytes / roof.stream


def allreduce(folder: Path, rounds: int, with_mr: bool) -> None:
    """All-reduce of 8 B to 256 MiB on 2 and 4 ranks, beside torch's gloo and mpi4py with MPICH; about 3 minutes."""
    if not with_mr:
        return
    timings: dict[str, Timing] = {}
    rows: list[Row] = []
    measured_roofs, shares = {}, {}
    for ranks in RANKS:
        with started(ranks) as groups:
            roof = roofs(groups["shm"], [nbytes for nbytes in SIZES if nbytes >= SMALL])
            measured_roofs[f"{ranks} ranks"] = roof.to_json()
            seconds = measure(groups, SIZES, max(rounds, LEAST_ROUNDS))
            commands = {name: group.command for name, group in groups.items()}
        medians = {key: statistics.median(times) for key, times in seconds.items()}
        show(medians, ranks, roof)
        rows += rows_of(medians, ranks)
        for (case, nbytes), times in seconds.items():
            name = f"{ranks} ranks, {size_words(nbytes)}, {WORDS[case]}"
            timings[name] = Fine(name=name, command=commands[case[0]], seconds=times, peak_bytes=0)
            if nbytes >= SMALL:
                shares[name] = round(roof_s(case, ranks, nbytes, roof) / medians[case, nbytes], 2)
    keep("allreduce", rows=rows, timings=timings, roofs=measured_roofs, share_of_roof=shares)


def rows_of(medians: Mapping[tuple[Case, int], float], ranks: int) -> list[Row]:
    """Return how the aims are met on so many ranks; of several sizes the worst counts."""
    sizes = sorted({nbytes for _, nbytes in medians})
    large, from_small = [each for each in sizes if each >= LARGE], [each for each in sizes if each >= SMALL]
    arrays = {"own": "the caller's arrays", "empty": "arrays of comm.empty()"}
    found = [
        worst_row(
            f"all-reduce, {arrays[kind]}, {ranks} ranks, 16 MiB and above",
            medians, ("shm", kind), PEERS, large, wanted,
        )
        for (kind, on), wanted in AIMS.items()
        if on == ranks
    ]  # fmt: skip
    found.append(
        worst_row(f"all-reduce, the caller's arrays, {ranks} ranks, 1 MiB", medians, ("shm", "own"), PEERS, [SMALL], 1.0)
    )  # fmt: skip
    found.append(
        worst_row(
            f"all-reduce over TCP, {ranks} ranks, 1 MiB and above",
            medians, ("tcp", "own"), PEERS[:1], from_small, 1.0,
        )
    )  # fmt: skip
    return found


def worst_row(
    work: str,
    medians: Mapping[tuple[Case, int], float],
    ours: Case,
    peers: Sequence[Case],
    sizes: Sequence[int],
    wanted: float,
) -> Row:
    """Return the row for the size at which we are least ahead of the fastest of the peers."""

    def fastest(nbytes: int) -> Case:
        return min(
            (peer for peer in peers if (peer, nbytes) in medians), key=lambda peer: medians[peer, nbytes]
        )

    def times(nbytes: int) -> float:
        return medians[fastest(nbytes), nbytes] / medians[ours, nbytes]

    worst = min(sizes, key=times)
    peer = fastest(worst)
    return Row(
        work=work,
        ours=f"{medians[ours, worst] * 1e3:.3g} ms",
        theirs=f"{WORDS[peer]} {medians[peer, worst] * 1e3:.3g} ms",
        measured=f"{times(worst):.2f} times as fast ({size_words(worst)})",
        wanted=f"at least {wanted:g} times" if wanted > 1 else "at least as fast",
        met=times(worst) >= wanted,
    )


def show(medians: Mapping[tuple[Case, int], float], ranks: int, roof: Roofs) -> None:
    """Print a table: milliseconds, bus bandwidth as nccl-tests have it, and from 1 MiB on the share of the roof."""
    memory = ", ".join(f"{rate / 1e9:.0f} ({size_words(nbytes)})" for nbytes, rate in roof.memory.items())
    print(f"  {ranks} ranks; memory in GB/s: {memory}; raw stream per rank {roof.stream / 1e9:.2f} GB/s")
    for (case, nbytes), second in medians.items():
        bus = 2 * (ranks - 1) / ranks * nbytes / second / 1e9
        share = f"{roof_s(case, ranks, nbytes, roof) / second:5.0%} of the roof" if nbytes >= SMALL else ""
        print(
            f"  {size_words(nbytes):>8}  {WORDS[case]:<24} {second * 1e3:10.3f} ms  {bus:6.2f} GB/s  {share}"
        )


def size_words(nbytes: int) -> str:
    """Return a size as 16 MiB, 8 B."""
    for unit, words in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {words}"
    return f"{nbytes} B"
