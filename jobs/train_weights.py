"""Weights in a file: the whole state of a run as named arrays, in safetensors or Arrow IPC, replaced in one step.

A file has the parameters (``params.``), what the optimiser keeps (``optimiser.``), the scaling of inputs (``scaling.``) and
the losses so far (``history.``), and as one JSON text in its metadata under ``mrdag`` the model, the settings and the data.
In Arrow IPC a row is an array: ``name``, ``dtype``, ``shape`` and ``data``, its bytes, little-endian in C order.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dag.dataflow.trees import flatten, names
from mapreduce.errors import BadInput, BadJob, MissingInput

Arrays = dict[str, npt.NDArray[Any]]

FORMAT_VERSION = 1
#: What is told of weights, and of what type; see ``Run.saved``.
ABOUT: dict[str, type] = {
    "model": dict, "settings": dict, "reading": dict, "data": str, "digest": str, "classes": list, "features": list, "until": int,
}  # fmt: skip

FORMATS = (".safetensors", ".arrow")
_ARRAYS = pa.schema(
    [
        ("name", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("data", pa.large_binary()),
    ]
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """Named arrays and what they are of."""

    arrays: Arrays
    about: Mapping[str, Any]

    def tree(self, prefix: str, like: Any) -> Any:
        """Return the arrays under ``prefix`` in the places of ``like``.

        Raises:
            BadInput: one is missing, or has another shape or dtype.
        """
        leaves, rebuild = flatten(like)
        return rebuild(
            [
                self.array_like(name, np.asarray(leaf))
                for name, leaf in zip(names(like, prefix), leaves, strict=True)
            ]
        )

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array by name; raises BadInput if it is missing."""
        found = self.arrays.get(name)
        if found is None:
            raise BadInput(f"training: the weights have no array {name!r}; they are of another model")
        return found

    def array_like(self, name: str, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array by name; raises BadInput if it is missing, or has another shape or dtype than ``like``."""
        found = self.array(name)
        if found.shape != like.shape or found.dtype != like.dtype:
            raise BadInput(
                f"training: the array {name!r} of the weights is {found.dtype} {found.shape}, wanted is {like.dtype} {like.shape}"
            )
        return found


def name_arrays(tree: Any, prefix: str) -> Arrays:
    """Return the leaves of a tree by their paths: ``params.0.weights``."""
    return dict(zip(names(tree, prefix), map(np.asarray, flatten(tree)[0]), strict=True))


def check_target(path: str) -> None:
    """Raise BadJob if weights cannot be saved under this name: a wrong ending, no such folder, no safetensors."""
    file = Path(path)
    if file.suffix not in FORMATS:
        raise BadJob(f"training: weights are saved as NAME{' or NAME'.join(FORMATS)}, got {path!r}")
    if not file.absolute().parent.is_dir():
        raise BadJob(f"training: the folder of {path} does not exist")
    if file.is_dir():
        raise BadJob(f"training: {path} is a folder; name a file")
    check_writable("--save", str(_part(file)))
    if file.suffix == ".safetensors":
        _safetensors()


def check_writable(option: str, path: str) -> None:
    """Raise BadJob if a file cannot be written: before a long run, not after it."""
    file = Path(path)
    try:
        if not file.exists():
            file.touch(exist_ok=False)
            file.unlink()
        elif not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise BadJob(
            f"training: {option}: cannot write in {file.absolute().parent}: {error.strerror}"
        ) from None


def _part(target: Path) -> Path:
    """Return the file that is written before it takes the place of the target."""
    return target.with_name(f".{target.name}.{os.getpid()}.part")


def save(path: str, saved: Saved) -> None:
    """Write weights so that at any time the file is the old one or the new one, whole."""
    target = Path(path).absolute()
    part = _part(target)
    about = json.dumps(dict(saved.about), sort_keys=True)
    try:
        with open(part, "wb") as file:
            if target.suffix == ".safetensors":
                arrays = {name: np.ascontiguousarray(array) for name, array in saved.arrays.items()}
                # ascontiguousarray makes a scalar an array of one.
                arrays = {name: array.reshape(saved.arrays[name].shape) for name, array in arrays.items()}
                file.write(_safetensors().save(arrays, metadata={"mrdag": about}))
            else:
                file.write(_to_arrow(saved.arrays, about))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):  # the file that a person knows, not the one beside it
            raise OSError(error.errno, error.strerror, path) from error
        raise


def load(path: str) -> Saved:
    """Read weights.

    Raises:
        MissingInput: there is no such file.
        BadInput: it is damaged, or none of ours.
        BadJob: safetensors is wanted and not installed.
    """
    file = Path(path)
    if file.suffix not in FORMATS:
        raise BadJob(f"training: weights are in files NAME{' or NAME'.join(FORMATS)}, got {path!r}")
    if not file.is_file():
        raise MissingInput(f"training: there are no weights {path}")
    content = file.read_bytes()
    try:
        arrays, about = _from_safetensors(content) if file.suffix == ".safetensors" else _from_arrow(content)
        found = json.loads(about)
    except BadJob:
        raise
    except Exception as error:
        raise BadInput(f"{path}: no weights that mr train has saved, or damaged: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path}: no weights that mr train has saved, or damaged: about is {found!r:.40}")
    if found.get("version") != FORMAT_VERSION:
        raise BadInput(f"{path}: weights of version {found.get('version')}; this one reads {FORMAT_VERSION}")
    for name, kind in ABOUT.items():
        if not isinstance(found.get(name), kind):
            raise BadInput(
                f"{path}: no weights that mr train has saved, or damaged: {name} must be a {kind.__name__}, got "
                f"{found.get(name)!r:.40}"
            )
    return Saved(arrays=arrays, about=found)


def _to_arrow(arrays: Arrays, about: str) -> bytes:
    columns = [
        pa.array(list(arrays), pa.string()),
        pa.array([array.dtype.newbyteorder("<").str for array in arrays.values()], pa.string()),
        pa.array([list(array.shape) for array in arrays.values()], pa.list_(pa.int64())),
        pa.array([array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays.values()], pa.large_binary()),
    ]  # fmt: skip
    schema = _ARRAYS.with_metadata({"mrdag": about})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _from_arrow(content: bytes) -> tuple[Arrays, str]:
    table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
    arrays = {
        row["name"]: np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"]).copy()
        for row in table.to_pylist()
    }
    return arrays, table.schema.metadata[b"mrdag"].decode()


def _from_safetensors(content: bytes) -> tuple[Arrays, str]:
    arrays: Arrays = _safetensors().load(content)
    header_bytes = int.from_bytes(content[:8], "little")
    return arrays, json.loads(content[8 : 8 + header_bytes])["__metadata__"]["mrdag"]


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise BadJob(
            f"training: .safetensors needs a package that is not installed: pip install 'mrdag[train]' ({error}); "
            "or give a name that ends in .arrow"
        ) from None
    return safetensors.numpy
