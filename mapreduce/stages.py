"""A job, written once: stages applied to datasets.

Calling a ``Stage`` on datasets gives a ``Dataset``, a handle that has not been computed.  The stages that can be reached from the
dataset a job returns *are* the plan; nothing here reads a file or starts a process.  A runner decides where the data lies.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin

from .errors import BadJob
from .inputs import Source
from .signatures import INJECTED, unknown_part, wanted, wrong_call

if TYPE_CHECKING:
    import pyarrow as pa

    from .partition import Partitioner

Pairs = Iterable[tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A handle on data: files that exist (``source``) or what a stage will make (``stage`` of ``inputs``)."""

    source: Source | None = None
    stage: Stage | None = None
    inputs: tuple[Dataset, ...] = ()
    sample_ranges: int | None = None
    as_lines: bool = False
    computation: object = field(default_factory=object)  # its identity; a sampled view keeps it

    def sample(self, ranges: int = 256) -> Dataset:
        """Return the same data seen through ``ranges`` short, evenly spaced byte ranges of its files."""
        if ranges < 1:
            raise BadJob(f"sample: ranges must be >= 1, got {ranges}")
        return replace(self, sample_ranges=ranges)

    def lines(self) -> Dataset:
        """Return the same data; files of another format than text are refused before any task runs."""
        return replace(self, as_lines=True)

    def describe(self) -> str:
        """Name the data: its first URL, or the stage that makes it."""
        if self.source is not None:
            return ", ".join(self.source.urls[:2]) + (", ..." if len(self.source.urls) > 2 else "")
        assert self.stage is not None
        return f"output of {self.stage.title!r}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One map, shuffle and reduce; every part but the map is optional.

    A record stage has ``map(key, value)``, which yields pairs of any Python values;
    ``combine(key, values)`` and ``reduce(key, values)`` yield pairs, or ``reduce_stream(groups)`` sees
    the sorted groups of a partition and may stop early.  With one map per input, ``reduce`` takes
    one iterable per input and the last of them is streamed.

    A batch stage has ``map_batch(batch)``, which returns or yields ``pyarrow.RecordBatch`` of
    ``schema``; rows with equal ``keys`` meet in one partition, sorted by ``keys`` and then by ``order``.
    ``aggregate`` folds the other columns, or ``reduce_batch(batches)`` sees the sorted stream.

    A function that wants more asks by the name of a keyword-only parameter: ``side`` (mapping of the
    side inputs), ``counters`` (``counters["name"] += 1``), ``task`` (index, attempt, worker), ``state``
    (what ``setup`` returned in this task).

    Args:
        name: shown in reports; the name of the map function otherwise.
        map: ``(key, value) -> pairs``, one for all inputs, or a list with one per input.  For text the
            key is the byte offset and the value the line.
        combine: ``(key, values) -> pairs``, run on map output; may run any number of times.
        reduce: ``(key, values) -> pairs``.
        reduce_stream: ``(groups) -> pairs`` where groups yields ``(key, values)`` in key order.
        map_batch: ``(batch) -> batch or batches``, one for all inputs or a list with one per input.
        schema: of ``map_batch``'s output; a function of the input's schema; None for the same schema.
        keys: names of the key columns of a batch stage.
        order: further sort columns; a leading ``-`` means descending (also allowed in ``keys``).
        aggregate: ``{column: "sum" | "min" | "max" | "count"}``.
        fold: ``(batch of 2 to 8 rows) -> batch of one row``; makes one row of all for reduce_batch, in a tree over the map
            tasks and their rows.  Needs ``partitions=1``, keys that put rows in the order of the map tasks, a row from each.
        reduce_batch: ``(iterator of sorted batches) -> batches`` of ``output_schema``.
        output_schema: of ``reduce_batch``'s output; ``schema`` otherwise.
        partitions: number of reduce tasks; the runner's choice otherwise.
        partition: ``(key, partitions) -> int`` for records, or a ``Partitioner``; a stable hash otherwise.
            ``partition="range"`` sorts across partitions by the cut points in ``side["cuts"]``.
        group: keys are tuples; their first ``group`` elements partition and group, the others only
            order (secondary sort).
        keeps_keys: what the reduce yields has the keys (encoded in the same way) that it was given, so it lies in
            the partition where those keys go; an engine may then join it by the same keys without moving it.
        side: small datasets (or plain values) that every task sees whole.
        setup, teardown: called once per task attempt, before and after.
        map_end: ``() -> pairs`` (or batches), called when a map task has seen all of its input; what it yields goes the way
            of what the map yields.  For a map that gathers in ``state``.

    Raises:
        BadJob: the parts do not fit together.
    """

    name: str | None = None
    map: Callable[..., Pairs | None] | Sequence[Callable[..., Pairs | None]] | None = None
    combine: Callable[..., Pairs | None] | None = None
    reduce: Callable[..., Pairs | None] | None = None
    reduce_stream: Callable[..., Pairs | None] | None = None
    map_batch: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    schema: Any = None
    keys: Sequence[str] = ()
    order: Sequence[str] = ()
    aggregate: Mapping[str, str] = field(default_factory=dict)
    fold: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    reduce_batch: Callable[..., Iterable[pa.RecordBatch]] | None = None
    output_schema: pa.Schema | None = None
    partitions: int | None = None
    partition: Callable[..., int] | Partitioner | str | None = None
    group: int | None = None
    keeps_keys: bool = False
    side: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[..., Any] | None = None
    teardown: Callable[..., Any] | None = None
    map_end: Callable[..., Any] | None = None

    def __new__(cls, **given: Any) -> Stage:
        """Refuse a keyword that no part of a stage has."""
        names = [each.name for each in fields(cls)]
        for name in given:
            if name not in names:
                raise BadJob(unknown_part(name, names))
        return object.__new__(cls)

    def __repr__(self) -> str:
        """Say what was given in one line: Stage(map=words, reduce=total, partitions=2)."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        shown = (
            f"{name}={_shown(value)}" for name, value in given.items() if value not in (None, (), {}, False)
        )
        return f"Stage({', '.join(shown)})"

    def __post_init__(self) -> None:
        def refuse(problem: str) -> None:
            raise BadJob(f"stage {self.title!r}: {problem}")

        if self.partitions is not None and self.partitions < 1:
            refuse(f"partitions must be >= 1, got {self.partitions}")
        if self.map is not None and self.map_batch is not None:
            refuse("give map (records) or map_batch (batches), not both")
        if sum(f is not None for f in (self.reduce, self.reduce_stream)) > 1:
            refuse("give reduce or reduce_stream, not both")
        if self.is_batch:
            for part in ("combine", "reduce", "reduce_stream", "group"):
                if getattr(self, part) is not None:
                    refuse(f"{part} belongs to record stages; a batch stage has aggregate or reduce_batch")
            if (self.aggregate or self.reduce_batch or self.order) and not self.keys:
                refuse("aggregate, reduce_batch and order need the key columns: keys=[...]")
            if self.aggregate and self.reduce_batch:
                refuse("give aggregate or reduce_batch, not both")
            if self.fold and (self.aggregate or not self.keys or self.partitions != 1 or wanted(self.fold)):
                refuse("fold is given rows alone, needs keys and partitions=1, and goes with no aggregate")
            for column, how in self.aggregate.items():
                if how not in ("sum", "min", "max", "count"):
                    refuse(f"aggregate of column {column!r} must be sum, min, max or count, got {how!r}")
        else:
            for part in ("schema", "output_schema", "fold"):
                if getattr(self, part) is not None:
                    refuse(f"{part} belongs to batch stages, which have map_batch")
            if self.combine is not None and self.reduce is None and self.reduce_stream is None:
                refuse("combine needs a reduce or a reduce_stream")
            if self.group is not None and self.group < 1:
                refuse(f"group must be >= 1, got {self.group}")
        if inspect.isfunction(self.partition) and (wrong := wrong_call("partition", self.partition)):
            refuse(wrong)
        for part, function in self._by_part():
            if not callable(function):
                refuse(f"{function!r} is no function")
            for parameter in wanted(function):
                if parameter not in INJECTED:
                    refuse(
                        f"{_name(function)} asks for the keyword {parameter!r}; "
                        f"a function may ask for {', '.join(INJECTED)}"
                    )
            if wrong := wrong_call(part, function, len(self.maps())):
                refuse(wrong)

    @property
    def is_batch(self) -> bool:
        """True for a stage over ``RecordBatch``, False for one over Python records."""
        return self.map_batch is not None or bool(self.keys) or self.reduce_batch is not None

    @property
    def shuffles(self) -> bool:
        """True if map output is partitioned and sorted; False for a map-only stage."""
        if self.is_batch:
            return bool(self.keys)
        return self.reduce is not None or self.reduce_stream is not None

    @property
    def title(self) -> str:
        """The stage's name for people."""
        if self.name:
            return self.name
        for function in self.functions():
            return _name(function)
        return "identity"

    def maps(self) -> tuple[Callable[..., Any] | None, ...]:
        """The map functions, one per input, or a single one for all inputs."""
        given = self.map_batch if self.map_batch is not None else self.map
        if given is None or not isinstance(given, (list, tuple)):
            return (given,)  # type: ignore[return-value]  # __post_init__ refuses what is no function
        return tuple(given)

    def functions(self) -> Iterator[Callable[..., Any]]:
        """Every function of the user's in this stage."""
        return (function for _, function in self._by_part())

    def _by_part(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        kind = "map" if self.map_batch is None else "map_batch"
        yield from ((kind, function) for function in self.maps() if function is not None)
        parts = "combine", "fold", "reduce", "reduce_stream", "reduce_batch", "setup", "teardown", "map_end"
        yield from ((part, f) for part in parts if (f := getattr(self, part)) is not None)

    def asking_for(self, name: str) -> frozenset[str]:
        """Return the kinds of tasks, of "map" and "reduce", that have a function which asks for ``name``."""
        kinds = {"map", "reduce"} if self.shuffles else {"map"}
        reducing = (self.reduce, self.reduce_stream, self.reduce_batch)
        found: set[str] = set()
        for function in self.functions():
            if name in wanted(function):
                if function in (self.setup, self.teardown):
                    found |= kinds
                else:
                    found.add("reduce" if function in reducing else "map")
        return frozenset(found)

    def __call__(self, *inputs: Dataset) -> Dataset:
        """Apply the stage to datasets; nothing runs."""
        if not inputs:
            raise BadJob(f"stage {self.title!r}: needs at least one dataset")
        for given in inputs:
            if not isinstance(given, Dataset):
                raise BadJob(f"stage {self.title!r}: takes datasets, got {type(given).__name__}")
        maps = self.maps()
        if len(maps) > 1 and len(maps) != len(inputs):
            raise BadJob(
                f"stage {self.title!r}: has {len(maps)} maps, one per input, but got {len(inputs)} inputs"
            )
        return Dataset(stage=self, inputs=inputs)


JobFunction = Callable[..., "Dataset | Generator[Dataset, list[Any], Dataset]"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A function from datasets to a dataset, with its name, its inputs and its parameters."""

    function: JobFunction
    name: str
    doc: str

    def __call__(self, *inputs: Any, **parameters: Any) -> Any:
        """Build the plan: what the function itself returns, a ``Dataset`` or a generator of them."""
        return self.function(*inputs, **parameters)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the datasets that the job takes."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p.name for p in inspect.signature(self.function).parameters.values() if p.kind in kinds)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The job's keyword-only parameters."""
        signature = inspect.signature(self.function, eval_str=True)
        return {p.name: p for p in signature.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def build(self, inputs: Sequence[Dataset], parameters: Mapping[str, Any]) -> Any:
        """Call the job's function with values of the declared types.

        Raises:
            BadJob: an input is missing, a parameter is unknown, missing or of the wrong type.
        """
        wanted = self.input_names
        if len(inputs) != len(wanted):
            raise BadJob(
                f"job {self.name!r} takes {len(wanted)} inputs ({', '.join(wanted)}), got {len(inputs)}"
            )
        return self.function(*inputs, **self.values_of(parameters))

    def values_of(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of parameters in their declared types.

        Raises:
            BadJob: a parameter is unknown, missing or of the wrong type.
        """
        known = self.parameters
        for name in parameters:
            if name not in known:
                have = ", ".join(known) or "none"
                raise BadJob(f"job {self.name!r} has no parameter {name!r}; it has: {have}")
        for name, parameter in known.items():
            if parameter.default is inspect.Parameter.empty and name not in parameters:
                raise BadJob(f"job {self.name!r} needs the parameter {name!r}; give -p {name}=VALUE")
        return {name: _convert(self.name, known[name], value) for name, value in parameters.items()}


def job(function: JobFunction) -> Job:
    """Make a job of a function from datasets to a dataset (a generator: loops that end on a condition)."""
    return Job(function=function, name=function.__name__, doc=inspect.cleandoc(function.__doc__ or ""))


def plan(result: Dataset, done: Iterable[Dataset] = ()) -> list[Dataset]:
    """Return the datasets that stages make, inputs first, ``result`` last; those in ``done`` are left out.

    >>> from mapreduce.inputs import Source
    >>> text = Dataset(source=Source(urls=("a.txt",)))
    >>> first = Stage(name="first")(text)
    >>> [made.stage.title for made in plan(Stage(name="second")(first))]
    ['first', 'second']
    """
    seen = {d.computation for d in done}
    ordered: list[Dataset] = []
    pending: list[tuple[Dataset, bool]] = [(result, False)]
    while pending:
        dataset, expanded = pending.pop()
        if dataset.stage is None or (dataset.computation in seen and not expanded):
            continue
        if expanded:
            ordered.append(dataset)
            continue
        seen.add(dataset.computation)
        pending.append((dataset, True))
        sides = [s for s in dataset.stage.side.values() if isinstance(s, Dataset)]
        pending.extend((d, False) for d in reversed((*dataset.inputs, *sides)))
    return ordered


def _shown(value: Any) -> str:
    """Return a part of a stage in a word: functions by name, mappings by their keys, what is large by its type."""
    if isinstance(value, str | int | None):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return _name(value) if callable(value) else type(value).__name__


def _name(function: Callable[..., Any]) -> str:
    return cast(str, getattr(function, "__name__", type(function).__name__))


def _convert(job_name: str, parameter: inspect.Parameter, value: Any) -> Any:
    """Turn the text of ``-p name=value`` into the type of the annotation or of the default."""
    if not isinstance(value, str):
        return value
    kind = parameter.annotation
    if kind is inspect.Parameter.empty:
        default = parameter.default
        kind = str if default in (inspect.Parameter.empty, None) else type(default)
    union = get_origin(kind) in (Union, UnionType)
    for each in get_args(kind) if union else (kind,):
        if each is not NoneType:
            with contextlib.suppress(ValueError):
                return _read(each, value)
    wanted = str(kind) if union else getattr(kind, "__name__", str(kind))
    raise BadJob(f"job {job_name!r}: parameter {parameter.name} must be of type {wanted}, got {value!r}")


def _read(kind: Any, text: str) -> Any:
    """Return what a word on a command line means; text where the type says nothing else."""
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ValueError
    return kind(text) if kind in (int, float) else text
