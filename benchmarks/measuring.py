"""Running programs side by side, checking what they wrote, and keeping what was measured.

Each contender is a whole process, started anew for each round; rounds are interleaved, so that a machine
which slows down for a while does so for all.  What is reported is the median, the single times are kept.
Inputs are in the page cache, and what earlier runs wrote is on the disk before the clock starts.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import mmap
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.sizes import parse_size

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PYTHON = sys.executable
MR = str(Path(PYTHON).parent / "mr")
CORES = 2
LEAST_ROUNDS = 3

# Versions that a reader needs to repeat the measurement.
PACKAGES = (
    "mrdag",
    "numpy",
    "pyarrow",
    "polars",
    "duckdb",
    "dask",
    "pandas",
    "mrjob",
    "pyspark",
    "torch",
    "mpi4py",
    "mpich",
)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A program that does the work: its command, what it writes (removed before a run), its environment."""

    name: str
    command: Sequence[str]
    outputs: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The seconds of each round of one contender, and the greatest VmHWM of its processes (0: not watched)."""

    name: str
    command: str
    seconds: list[float]
    peak_bytes: int

    @property
    def median_s(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the timing as JSON, times to the microsecond."""
        found: dict[str, Any] = {
            "command": self.command,
            "seconds": [round(second, 6) for second in self.seconds],
            "median_s": round(self.median_s, 6),
        }
        if self.peak_bytes:
            found["peak_process_bytes"] = self.peak_bytes
        return found


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table in README.md: a claim, what was measured, what was wanted."""

    work: str
    ours: str
    theirs: str
    measured: str
    wanted: str
    met: bool


def touch_memory(size: int = 8 << 30) -> None:
    """Use ``size`` bytes of memory (a third of the machine's at most) and give them back.

    The host of a virtual machine takes back memory that was freed, and hands it out again at the first touch, at up to ten
    times the cost of later ones.  Without this a contender would pay for what the one before it has freed.
    """
    size = min(size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for place in range(0, size, 4096):
            memory[place] = 1


def run_side_by_side(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    folder: Path,
    check: Callable[[Contender], None] = lambda contender: None,
    watch_memory: bool = False,
) -> dict[str, Timing]:
    """Run every contender once per round and return its timing by name.

    ``check`` sees each output after the clock has stopped and raises if it is wrong.

    Raises:
        RuntimeError: a contender failed; the message holds the end of what it printed.
    """
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    peaks = dict.fromkeys(seconds, 0)
    for number in range(rounds):
        for contender in contenders:
            _clear(contender)
            touch_memory()
            elapsed, peak = _run_once(contender, folder, watch_memory)
            check(contender)
            _clear(contender)
            seconds[contender.name].append(elapsed)
            peaks[contender.name] = max(peaks[contender.name], peak)
            memory = f", {peak / 1e6:,.0f} MB at most in a process" if watch_memory else ""
            print(f"  round {number + 1}: {contender.name:<28} {elapsed:8.3f} s{memory}", flush=True)
    return {
        contender.name: Timing(
            name=contender.name,
            command=shown_command(contender, folder),
            seconds=seconds[contender.name],
            peak_bytes=peaks[contender.name],
        )
        for contender in contenders
    }


def _clear(contender: Contender) -> None:
    for path in contender.outputs:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # Otherwise one contender's clock runs while the kernel writes another's output.
    os.sync()


def _run_once(contender: Contender, folder: Path, watch_memory: bool) -> tuple[float, int]:
    """Return (seconds, greatest VmHWM in bytes of the process and its descendants, 0 when not watched)."""
    environment = {**os.environ, "MR_HOME": str(folder / "home"), **contender.environment}
    log = folder / "contender.log"
    peaks = [0]
    ended = threading.Event()
    with log.open("wb") as file:
        start = time.perf_counter()
        process = subprocess.Popen(
            contender.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, cwd=folder
        )

        def sample() -> None:
            while not ended.wait(0.02):
                peaks.append(max(peaks.pop(), tree_peak_bytes(process.pid)))

        watcher = threading.Thread(target=sample)
        if watch_memory:
            watcher.start()
        try:
            # Not wait(timeout): that looks every 50 ms, and the times would be multiples of it.
            code = process.wait()
            elapsed = time.perf_counter() - start
        finally:
            ended.set()
            if process.poll() is None:
                process.terminate()
                process.wait()
            if watch_memory:
                watcher.join()
    if code != 0:
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{contender.name} exited with {code}: {shown_command(contender, folder)}\n{said}")
    return elapsed, peaks[0]


def tree_peak_bytes(root: int) -> int:
    """Return the greatest VmHWM of process ``root`` and its descendants, as the kernel accounts it."""
    children: dict[int, list[int]] = {}
    peaks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/status", encoding="utf-8", errors="replace") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
        except OSError:
            continue  # it has ended since the listing
        children.setdefault(int(fields["PPid"]), []).append(int(entry))
        if "VmHWM" in fields:
            peaks[int(entry)] = int(fields["VmHWM"].split()[0]) * 1024
    found, todo = 0, [root]
    while todo:
        pid = todo.pop()
        found = max(found, peaks.get(pid, 0))
        todo += children.get(pid, [])
    return found


def shown_command(contender: Contender, folder: Path) -> str:
    """Return the command line as a reader would type it, without the paths of this machine."""
    folders = (
        (MR, "mr"),
        (PYTHON, "python"),
        (str(Path(PYTHON).parent) + "/", ""),
        (str(HERE), "benchmarks"),
        (str(folder) + "/", ""),
        (str(folder), "."),
    )

    def short(word: str) -> str:
        for path, name in folders:
            word = word.replace(path, name)
        return word

    words = [f"{name}={short(value)}" for name, value in contender.environment.items()]
    words += [shlex.quote(short(word)) if word != "*" else word for word in contender.command]
    return " ".join(words)


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, cores, memory, kernel, versions."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def keep(name: str, *, rows: Sequence[Row], timings: Mapping[str, Timing], **facts: Any) -> None:
    """Print the rows, and write ``results/<name>.json`` if each time is a median of at least 3 rounds."""
    for row in rows:
        print(f"  {row.work}: {row.measured} (wanted {row.wanted}): {'met' if row.met else 'NOT MET'}")
    if any(len(timing.seconds) < LEAST_ROUNDS for timing in timings.values()):
        print(f"  not kept: fewer than {LEAST_ROUNDS} rounds")
        return
    RESULTS.mkdir(exist_ok=True)
    document = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        # 2 is a benchmark alone on 2 cores; much more means that others were working.
        "load_average_at_end": [round(load, 2) for load in os.getloadavg()],
        **facts,
        "timings": {key: timing.to_json() for key, timing in timings.items()},
        "rows": [vars(row) for row in rows],
    }
    path = RESULTS / f"{name}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(path)


def generated(folder: Path, name: str, kind: str, size: str, *options: str) -> Path:
    """Return the file ``name`` in ``folder``, made by ``mr generate`` with seed 1 unless it is there.

    Raises:
        RuntimeError: a file of that name has another size, so that the result would bear a wrong label.
    """
    path = folder / name
    if not path.exists():
        subprocess.run([MR, "generate", kind, str(path), "--size", size, "--seed", "1", *options], check=True)
    found, wanted = path.stat().st_size, parse_size(size)
    if not wanted - 200 < found <= wanted:  # whole lines
        raise RuntimeError(f"{path} has {found} bytes instead of {size}; remove it to have it made again")
    with path.open("rb", buffering=0) as file:  # into the page cache
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass
    return path


def parts(output: Path) -> list[Path]:
    """Return the files of an output in the order of their names; a file is its own only part."""
    if output.is_file():
        return [output]
    return sorted(path for path in output.rglob("*") if path.is_file() and path.name[0] not in "_.")


def sha256(output: Path) -> str:
    """Return the SHA-256 of a file, or of the parts of a folder one after the other."""
    digest = hashlib.sha256()
    for path in parts(output):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def word_counts(output: Path) -> dict[str, int]:
    """Return the counts in ``word TAB count`` lines (mrjob writes the word as JSON)."""
    counts: dict[str, int] = {}
    for path in parts(output):
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                word, _, count = line.rstrip("\n").rpartition("\t")
                word = json.loads(word) if word.startswith('"') and word.endswith('"') else word
                if word in counts:
                    raise RuntimeError(f"{output}: the word {word!r} occurs twice")
                counts[word] = int(count)
    return counts
